"""Renders the history of a program as one self-contained HTML page, or as text for a terminal.

Generated tokens are shaded by their probability, with the alternatives when they are pointed at;
forced tokens, which had no alternative, are underlined. Several states stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from dragoman.core.error import visible
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Reasoning,
    Refusal,
    Token,
)

from .history import Capture, Piece, State

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head><body><main class="dragoman">{body}</main></body></html>
"""
_STYLE = """
.dragoman { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #d5d5d5;
  --dim: #666666; --hue: 32, 116, 212; font: 14px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); display: flex; gap: 1.5rem; align-items: flex-start;
  overflow-x: auto; padding: 1rem; }
.dragoman section { flex: 1 1 24rem; min-width: 20rem; max-width: 60rem; }
.dragoman article { border: 1px solid var(--line); border-radius: 6px; margin: 0 0 .6rem;
  padding: .4rem .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.dragoman h2 { font-size: 11px; letter-spacing: .05em; text-transform: uppercase; margin: 0;
  color: var(--dim); font-weight: 600; }
.dragoman .gen { border-radius: 2px; }
.dragoman .token { position: relative; border-radius: 2px; }
.dragoman .token.forced { text-decoration: underline dotted; }
.dragoman .token:hover, .dragoman .token:focus { outline: 1px solid var(--ink); }
.dragoman .token .top { display: none; position: absolute; left: 0; top: 1.6em; z-index: 2;
  background: var(--paper); border: 1px solid var(--line); border-radius: 4px; padding: .3rem .5rem;
  font: 12px/1.5 ui-monospace, monospace; white-space: pre; text-decoration: none;
  box-shadow: 0 2px 8px rgba(0, 0, 0, .2); }
.dragoman .token:hover .top, .dragoman .token:focus .top { display: block; }
.dragoman .note { color: var(--dim); font-size: 12px; }
.dragoman .call, .dragoman .result, .dragoman .thought { display: block; color: var(--dim);
  border-left: 3px solid var(--line); padding-left: .5rem; margin: .2rem 0; }
.dragoman img { max-width: 16rem; max-height: 12rem; display: block; }
.dragoman table { border-collapse: collapse; width: 100%; font-size: 12px; margin: 0 0 .6rem; }
.dragoman th, .dragoman td { text-align: left; vertical-align: top; padding: .15rem .6rem .15rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  .dragoman { --ink: #e8e8e8; --paper: #161616; --line: #3a3a3a; --dim: #9a9a9a;
    --hue: 110, 170, 255; } }
body { margin: 0; }
"""


def page(columns: Sequence[tuple[str, State]], prices: tuple[float, float] | None = None) -> str:
    """A page with a column for each state, under its title. `prices` are those of a million tokens
    of input and of output."""
    body = "".join(_column(title, state, prices) for title, state in columns)
    return _PAGE.format(title="A program", style=_STYLE, body=body)


def fragment(state: State) -> str:
    """A state for a notebook."""
    return f'<style>{_STYLE}</style><div class="dragoman">{_column("", state, None)}</div>'


def _column(title: str, state: State, prices: tuple[float, float] | None) -> str:
    shown = [f"<h2>{escape(title)}</h2>"] if title else []
    for turn in state.turns():
        inside = "".join(map(_piece, turn.pieces()))
        shown.append(f"<article><h2>{escape(turn.role)}</h2>{inside}</article>")
    shown += (_captures(state), f'<p class="note">{escape(_usage(state, prices))}</p>')
    return f"<section>{''.join(shown)}</section>"


def _piece(piece: Piece) -> str:
    match piece.value:
        case str(text):
            return _generated(piece, text) if piece.generated else escape(text)
        case Image(url=str(url)) if url.startswith("data:image/"):
            return f'<img alt="image" src="{escape(url)}">'
        case Image(url=url):  # the page loads nothing from elsewhere
            return f'<span class="note">[image {escape(url or "")}]</span>'
        case Audio(transcript=transcript):
            return f'<span class="note">[audio] {escape(transcript or "")}</span>'
        case FunctionCall(name=name, text=text) | CustomToolCall(name=name, text=text):
            return f'<span class="call">{escape(name)}({escape(text)})</span>'
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            shown = output if isinstance(output, str) else "[parts]"
            return f'<span class="result">{escape(shown)}</span>'
        case Reasoning(text=text):
            return f'<span class="thought">{escape(text)}</span>'
        case Refusal(text=text):
            return f'<span class="note">[refused] {escape(text)}</span>'
    return '<span class="note">[…]</span>'


def _generated(piece: Piece, text: str) -> str:
    """A text token by token, each shaded by its improbability."""
    about = f"{piece.seconds * 1000:.0f} ms"
    if piece.guarantee is not None:
        about = f"{piece.guarantee}, {about}"
    cut = list(_cut(piece.tokens, text))
    if "".join(shown for shown, _ in cut) != text:
        shade = "background: rgba(var(--hue), .18)"
        return f'<span class="gen" style="{shade}" title="{escape(about)}">{escape(text)}</span>'
    tokens = "".join(_token(shown, token) for shown, token in cut)
    return f'<span class="gen" title="{escape(about)}">{tokens}</span>'


def _cut(tokens: Sequence[Token], text: str) -> Iterator[tuple[str, Token]]:
    """The tokens of a text, those at its edges cut to it."""
    whole = "".join(token.text for token in tokens)
    start = whole.find(text)
    at = 0
    for token in tokens:
        shown = token.text[max(start - at, 0) : max(start + len(text) - at, 0)]
        at += len(token.text)
        if start >= 0 and shown:
            yield shown, token


def _token(shown: str, token: Token) -> str:
    if token.logprob is None:
        return f'<span class="token">{escape(shown)}</span>'
    chance = math.exp(min(token.logprob, 0.0))
    shade = f"background: rgba(var(--hue), {0.08 + 0.55 * (1 - chance):.2f})"
    lines = [_line(token)]
    lines += [_line(each) for each in token.top if each.text != token.text]
    if token.forced:
        lines.append("nothing else could follow")
    top = escape("\n".join(lines))
    kind = "token forced" if token.forced else "token"
    return (
        f'<span class="{kind}" tabindex="0" style="{shade}">{escape(shown)}'
        f'<span class="top">{top}</span></span>'
    )


def _line(token: Token) -> str:
    chance = 0.0 if token.logprob is None else math.exp(min(token.logprob, 0.0))
    return f"{chance * 100:6.2f} %  {token.text!r}"


def _captures(state: State) -> str:
    rows = []
    for name in state.names():
        found = state.capture(name)
        each = found if isinstance(found, list) else [found]
        for capture in filter(None, each):
            cells = (name, _value(capture), _sure(capture))
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    if not rows:
        return ""
    head = "<tr><th>capture</th><th>value</th><th>guarantee, probability, end</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _value(capture: Capture) -> str:
    value: Any = capture.value
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else repr(value)


def _sure(capture: Capture) -> str:
    chance = capture.log_prob
    facts = [capture.guarantee, None if chance is None else f"{math.exp(min(chance, 0)):.3g}"]
    return ", ".join(filter(None, [*facts, None if capture.end == "stop" else capture.end]))


def _usage(state: State, prices: tuple[float, float] | None) -> str:
    usage = state.usage
    facts = [f"{usage.round_trips} requests", f"{usage.latency:.2f} s"]
    if usage.time_to_first_token is not None:
        facts.append(f"first token after {usage.time_to_first_token:.2f} s")
    counts = {
        "tokens in": usage.input_tokens,
        "of them cached": usage.cached_tokens,
        "tokens out": usage.output_tokens,
        "of them reasoning": usage.reasoning_tokens,
    }
    facts += [f"{count} {name}" for name, count in counts.items() if count]
    pieces = [piece for turn in state.turns() for piece in turn.pieces()]
    if forced := sum(token.forced for piece in pieces for token in piece.tokens):
        facts.append(f"skipped {forced}")
    if prices is not None:
        cost = (usage.input_tokens or 0) * prices[0] + (usage.output_tokens or 0) * prices[1]
        facts.append(f"cost {cost / 1e6:.6f}")
    return ", ".join(facts)


def plain(state: State, *, color: bool = False) -> str:
    """A state for a terminal: generated text is in colour, or between marks."""
    before, after = ("\x1b[32m", "\x1b[0m") if color else ("⟦", "⟧")
    shown = []
    for turn in state.turns():
        text = ""
        for piece in turn.pieces():
            if isinstance(piece.value, str):
                safe = visible(piece.value)
                text += f"{before}{safe}{after}" if piece.generated else safe
            else:
                one = State(type(turn)(None, turn.role, None, Piece(None, piece.value)))
                text += visible(str(one).partition("\n")[2].removesuffix("<|im_end|>\n"))
        shown.append(f"{visible(turn.role, True)}: {text}\n")
    return "".join((*shown, _usage(state, None), "\n"))
