"""Lays a conversation out by a profile's frame, for models that bring no chat template.

Calls are written as the profile says, which is also what its parser reads.
Frames are data; what the messages are is worked out before.
"""

from __future__ import annotations

import json
import re

from dragoman.core.item import JSON
from dragoman.core.ledger import Ledger
from dragoman.core.request import Request
from dragoman.formats.format import Setting
from dragoman.formats.messages import messages, tools
from dragoman.formats.prompt import Control, Piece, Prompt

from .profile import Profile, Side
from .values import bare


class _Page:
    """A prompt while it is being written: our own words, and those of others."""

    def __init__(self, profile: Profile) -> None:
        self._pieces: list[Piece] = []
        names = sorted(profile.controls, key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        self._names = frozenset(names)

    def mark(self, text: str) -> None:
        """Words of the frame: control tokens in them are meant."""
        for piece in self._controls.split(text):
            if piece:
                self._add(Control(piece) if piece in self._names else piece)

    def say(self, text: str) -> None:
        """Words of anybody else, which are only words."""
        if text:
            self._add(text)

    def _add(self, piece: Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(piece, str) and isinstance(last, str):
            self._pieces[-1] = last + piece
        else:
            self._pieces.append(piece)

    def prompt(self, ledger: Ledger) -> Prompt:
        """All of it."""
        return Prompt(tuple(self._pieces), ledger.losses())


def lay_out(profile: Profile, request: Request, setting: Setting) -> Prompt:
    """The prompt for a request. Raises FaultError for what cannot be said in it."""
    ledger, frame = Ledger(), profile.frame
    turns = messages(request, ledger, profile.id_length)
    page = _Page(profile)
    page.mark(frame.begin)
    lead = _lead(setting)
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else ""
    known = tools(request)
    if lead or system or known:
        page.mark(frame.system.before)
        page.say("\n\n".join(filter(None, (lead, system))))
        if known:
            page.mark("\n\n" if lead or system else "")
            _tell(page, frame.tools, known)
        page.mark(frame.system.after)
    sides = {"system": frame.system, "user": frame.user, "tool": frame.tool}
    for turn in turns:
        if turn["role"] == "assistant":
            _assistant(page, profile, turn)
        else:
            _said(page, sides[turn["role"]], turn["content"])
    page.mark(frame.assistant.before)
    return page.prompt(ledger)


def _lead(setting: Setting) -> str:
    today = setting.today and f"Current date: {setting.today}"
    cutoff = setting.knowledge_cutoff and f"Knowledge cutoff: {setting.knowledge_cutoff}"
    return "\n".join(filter(None, (setting.identity, cutoff, today)))


def _tell(page: _Page, words: str, known: list[dict[str, JSON]]) -> None:
    before, _, after = words.partition("{tools}")
    page.mark(before)
    page.say("\n".join(json.dumps(tool, ensure_ascii=False) for tool in known))
    page.mark(after)


def _said(page: _Page, side: Side, text: str) -> None:
    page.mark(side.before)
    page.say(text)
    page.mark(side.after)


def _assistant(page: _Page, profile: Profile, turn: dict[str, JSON]) -> None:
    frame, calls = profile.frame, turn.get("tool_calls", [])
    page.mark(frame.assistant.before)
    if thought := turn.get("reasoning_content"):
        _said(page, frame.thought, thought)
    page.say(turn["content"])
    if calls:
        page.mark("\n" if turn["content"] else "")
        _calls(page, profile, calls)
    page.mark((calls and frame.call_end) or frame.assistant.after)


def _calls(page: _Page, profile: Profile, calls: list[dict[str, JSON]]) -> None:
    writing = profile.writing
    functions = [call["function"] for call in calls]
    if len(functions) == 1 and _native(page, profile, functions[0]):
        return
    page.mark(writing.first)
    for number, function in enumerate(functions):
        page.mark(writing.between if number else "")
        page.mark(writing.opening)
        page.say(function["name"])
        page.mark(writing.separator)
        arguments = function["arguments"]
        if writing.body == "json" or isinstance(arguments, str):
            page.say(getattr(arguments, "text", None) or _json(arguments))
        else:
            for key, value in arguments.items():
                page.say(f"<parameter={key}>\n{bare(value)}\n</parameter>\n")
        page.mark(writing.closing)
    page.mark(writing.last)


def _native(page: _Page, profile: Profile, function: dict[str, JSON]) -> bool:
    """A call that the family writes in a way of its own: code, or a query to a built-in tool."""
    name, arguments = function["name"], function["arguments"]
    match arguments:
        case {"code": str(code)} if name == profile.code and len(arguments) == 1:
            text = code
        case {"query": str(query)} if name in profile.builtins and len(arguments) == 1:
            text = f"{name}.call(query={json.dumps(query, ensure_ascii=False)})"
        case _:
            return False
    marks = [mark for mark, to in profile.states["text"].marks.items() if to == "call"]
    page.mark(marks[0])
    page.say(text)
    page.mark(profile.writing.last)
    return True


def _json(arguments: JSON) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
