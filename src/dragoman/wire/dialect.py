"""Dialects: every difference between two implementations of one protocol is a value.

The defaults are what the protocols' own documents say, or the superset all known readers take.
Profiles choose other values; nothing here or below asks which server it is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Dialect(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one particular other side encodes and decodes a wire."""

    # Chat requests: the names and fields this upstream wants.
    max_tokens: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """The field past reasoning goes back in on assistant messages."""
    reasoning_echo: Literal["must", "may", "never"] = "may"
    """Whether past reasoning goes back: `must` is for servers that refuse a message with calls and
    without the reasoning that led to them, `never` for those that refuse the field."""
    repetition_penalty: str = "repetition_penalty"
    content_parts: bool = True
    """Whether content may be a list of parts where it is all text."""
    ask_usage: bool = True
    """Whether a stream is asked to report usage, whatever the client asked."""
    drop: frozenset[str] = frozenset()
    """Request fields (by this wire's names) this upstream refuses: dropped and reported."""

    # Chat answers.
    reasoning_out: tuple[str, ...] = ("reasoning", "reasoning_content")
    """The fields reasoning is shown in."""

    # Completions requests with a prompt that a format made.
    prompt_options: tuple[tuple[str, bool], ...] = ()
    """Fields by which control tokens are read in a prompt and shown in the answer."""
    shown_controls: str | None = None
    """The field that lists the control tokens to be shown in the answer."""

    # Responses answers.
    reasoning_events: Literal["reasoning_text", "reasoning"] = "reasoning_text"
    """OpenAI's event names, or Open Responses' shorter ones."""
    error_event: Literal["flat", "nested"] = "flat"


STANDARD = Dialect()
