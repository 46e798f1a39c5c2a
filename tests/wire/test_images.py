"""Pictures cross the wires as they were given: an address, a data URL or the id of a file."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from dragoman.wire.responses import RESPONSES

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
}
WIRES = [CHAT, RESPONSES]


@given(
    st.sampled_from(WIRES),
    st.sampled_from(WIRES),
    st.sampled_from(ADDRESSES)
    | st.text(st.characters(codec="utf-8", min_codepoint=33), min_size=1, max_size=40).map(
        "data:image/png;base64,{}".format
    ),
)
def test_r2_26_an_image_travels_as_it_was_given(source, target, url) -> None:
    request = source.decode_request(json.dumps(BODIES[source.name](url)).encode())
    value = json.loads(target.encode_request(request, STANDARD)[0])
    image = (value.get("messages") or value["input"])[0]["content"][0]["image_url"]
    assert (image["url"] if isinstance(image, dict) else image) == url
