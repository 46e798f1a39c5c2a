"""Reads the header of a message the model wrote, however badly it wrote it.

A header names a role, a channel, a recipient and the type of the content, in any order and with
anything between. This module only reads one: it knows no tool, and not what is done with the text.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from .marks import CHANNEL, CONSTRAIN

Channel = Literal["analysis", "commentary", "final"]

_CHANNELS: tuple[Channel, ...] = ("analysis", "commentary", "final")
_CONTENT_TYPES = frozenset(("json", "code", "text", "python"))
_STRANGERS = ("user", "system", "developer", "tool")
_ASSISTANT = re.compile(r"\s*assistant(?::[^\s<]*)?")
_CONSTRAINT = re.compile(re.escape(CONSTRAIN) + r"\s*")
_WORD = re.compile(r"\s*([^\s<]*)")
_NAME = re.compile(r"[\w.-]+")


class Header(Struct, frozen=True):
    """What a header says, and what was wrong with it."""

    channel: Channel | None = None
    recipient: str | None = None
    content_type: str | None = None
    foreign: bool = False
    """Whether somebody else speaks: the model went on and wrote the user's or a tool's part."""
    rest: str = ""
    """What stands behind the channel, for a message whose header never ended."""
    warnings: tuple[str, ...] = ()


def read_header(text: str) -> Header:
    """What the text between the start of a message and its content says.

    >>> read_header("<|channel|>commentary to=functions.f <|constrain|>json").recipient
    'functions.f'
    >>> read_header("<|channel|>final <|constrain|>json").content_type
    'json'
    """
    before, _, after = text.partition(CHANNEL)
    foreign = _is_foreign(before)
    before = without_role(before)
    warnings: list[str] = []
    name, after = _first_word(after)
    if not name:  # the mark is missing, or its channel is
        name, before = _first_word(before)
        if _channel(name) is None:
            name, before = "", f"{name}{before}"
    channel = _channel(name)
    if name and name != channel:
        warnings.append(f"the channel {name!r} was read as {channel or 'final'}")
    recipient, content_type = _addressed(_words(f"{before} {after}"), warnings)
    return Header(channel, recipient, content_type, foreign, after, tuple(warnings))


def looks_like_one(text: str) -> bool:
    """Whether text at the place of a header whose start was left out may be one.

    >>> looks_like_one("assist"), looks_like_one(" to=functions"), looks_like_one("Hello")
    (True, True, False)
    """
    word = text.lstrip()
    if word.startswith(("assistant", "to=")):
        return True
    end = next((at for at, letter in enumerate(word) if not letter.isalnum()), len(word))
    if end < len(word):
        return word[:end] in _CHANNELS
    return any(known.startswith(word) for known in ("assistant", "to=", *_CHANNELS))


def without_role(text: str) -> str:
    """The text without an assistant's role in front."""
    role = _ASSISTANT.match(text)
    return text[role.end() :] if role else text


def _is_foreign(before: str) -> bool:
    name, _ = _first_word(before)
    role, _, _ = name.partition(":")
    return role in _STRANGERS or "to=assistant" in before.split()


def _first_word(text: str) -> tuple[str, str]:
    found = _WORD.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def _channel(name: str) -> Channel | None:
    """The channel a name begins with or is the beginning of."""
    letters = name.rstrip("?!.:;,")
    for channel in _CHANNELS:
        if letters and (channel.startswith(letters) or letters.startswith(channel)):
            return channel
    return None


def _words(text: str) -> list[str]:
    text = _CONSTRAINT.sub(f" {CONSTRAIN}", text.replace(CHANNEL, " "))
    return text.replace("to= ", "to=").split()


def _addressed(words: list[str], warnings: list[str]) -> tuple[str | None, str | None]:
    """Recipient and content type. Without `to=`, a lone word that names no type is a recipient."""
    recipients = [word[3:] for word in words if word.startswith("to=")]
    others = [word for word in words if not word.startswith("to=")]
    types = [word for word in others if word in _CONTENT_TYPES or CONSTRAIN in word]
    others = [word for word in others if word not in types]
    if not recipients and others and _NAME.fullmatch(others[0]) and len(others) + len(types) <= 2:
        recipients.append(others.pop(0))
    if others and not types:
        types.append(others.pop())
    ignored = [*recipients[1:], *types[1:], *others]
    if ignored:
        warnings.append(f"a header had words to spare: {' '.join(ignored)!r}")
    content_type = types[0].replace(CONSTRAIN, "") if types else None
    return recipients[0] if recipients else None, content_type
