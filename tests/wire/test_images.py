"""Pictures cross the wires as they were given: an address, a data URL or the id of a file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Wire
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


@pytest.mark.parametrize("url", ADDRESSES)
@pytest.mark.parametrize("target", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("source", WIRES, ids=lambda wire: wire.name)
def test_r2_26_an_image_travels_as_it_was_given(source: Wire, target: Wire, url: str) -> None:
    assert said(source, target, url) == url


@given(st.text(st.characters(codec="utf-8", min_codepoint=33), min_size=1, max_size=40))
def test_r2_26_whatever_is_behind_the_colon(text: str) -> None:
    url = f"data:image/png;base64,{text}"
    assert said(CHAT, RESPONSES, url) == said(RESPONSES, CHAT, url) == url


def said(source: Wire, target: Wire, url: str) -> str:
    """The address as the other wire says it."""
    request = source.decode_request(json.dumps(BODIES[source.name](url)).encode())
    body, _ = target.encode_request(request, STANDARD)
    value = json.loads(body)
    part = (value.get("messages") or value["input"])[0]["content"][0]
    image = part["image_url"]
    return image["url"] if isinstance(image, dict) else image
