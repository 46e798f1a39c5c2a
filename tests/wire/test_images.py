"""Pictures cross the wires as they were given: an address, a data URL or the id of a file."""

from __future__ import annotations

import json

from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import WIRES

ADDRESSES = [
    "https://example.com/cat.png?size=2#eye",
    "http://127.0.0.1:9/never-asked.jpg",
    "file:///etc/passwd",
    "data:image/png;base64,iVBORw0KGgo=",
    "data:image/JPEG;charset=x;base64,/9j/4AAQ",
]
BODIES = {
    "chat": lambda url: {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
        ],
    },
    "responses": lambda url: {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
    },
    "messages": lambda url: {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "image", "source": source(url)}]}],
    },
}
TALKING = [wire for wire in WIRES.values() if wire.conversation]


def source(url: str) -> dict[str, str]:
    """How Messages gives a picture."""
    if url.startswith("http"):
        return {"type": "url", "url": url}
    head, _, data = url.partition(";base64,")
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


@given(
    st.sampled_from(TALKING),
    st.sampled_from(TALKING),
    st.sampled_from(ADDRESSES)
    | st.text(st.characters(codec="utf-8", min_codepoint=33), min_size=1, max_size=40).map(
        "data:image/png;base64,{}".format
    ),
)
def test_r2_26_an_image_travels_as_it_was_given(sender, target, url) -> None:
    if "messages" in (sender.name, target.name):  # which has addresses, and types without more
        assume(url.startswith(("http", "data:image/png;")))
    request = sender.decode_request(json.dumps(BODIES[sender.name](url)).encode())
    value = json.loads(target.encode_request(request, STANDARD)[0])
    part = (value.get("messages") or value["input"])[0]["content"][0]
    if "source" in part:
        assert part["source"] == source(url)
        return
    image = part["image_url"]
    assert (image["url"] if isinstance(image, dict) else image) == url
