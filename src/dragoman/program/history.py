"""The history of a program: turns, captures and usage, as values that share their past.

Appending and branching take constant time: a state points to the one before it. The open role and
the open blocks are context variables, so that threads and tasks have their own.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, Self, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from dragoman.client.answer import End, Spent
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    Token,
)
from dragoman.core.response import Guarantee, Usage
from dragoman.engines.fan_out import add_usage
from dragoman.wire import json

RoleName = Literal["system", "user", "assistant"]
ROLES = ("system", "user", "assistant")


class Capture(Struct, frozen=True, omit_defaults=True):
    """What was captured under a name: the `value`, its tokens where they were reported, the
    guarantee that it matches the grammar, and how the answer ended.

    `end` is `stop`, `length`, `content_filter`, `refused` …, as in `dragoman.Answer`; a `refusal`
    is the text of the model's refusal.
    """

    value: Any
    tokens: tuple[Token, ...] = ()
    guarantee: Guarantee | None = None
    end: End = "stop"
    refusal: str = ""

    @property
    def log_prob(self) -> float | None:
        """The natural logarithm of the probability of its tokens; None where they have none."""
        found = [token.logprob for token in self.tokens]
        known = [each for each in found if each is not None]
        return sum(known) if known and len(known) == len(found) else None


class Listed(Struct, frozen=True):
    """A capture appended to those before it."""

    last: Capture
    before: Listed | None = None

    def all(self) -> list[Capture]:
        """The captures, first to last."""
        found: list[Capture] = []
        each: Listed | None = self
        while each is not None:
            found.append(each.last)
            each = each.before
        return found[::-1]


class Piece:
    """A text, a part or an item of a turn, with metadata. Texts that were `generated`
    have their tokens, the seconds they took, and their guarantee."""

    __slots__ = ("before", "generated", "guarantee", "seconds", "tokens", "value")

    def __init__(
        self,
        before: Piece | None,
        value: str | Part | Item,
        generated: bool = False,
        tokens: tuple[Token, ...] = (),
        seconds: float = 0.0,
        guarantee: Guarantee | None = None,
    ) -> None:
        self.before, self.value, self.generated = before, value, generated
        self.tokens, self.seconds, self.guarantee = tokens, seconds, guarantee


class Turn:
    """One turn of a role. `mark` is the role block it belongs to; `last` is its last piece."""

    __slots__ = ("_items", "before", "last", "mark", "role")

    def __init__(
        self, before: Turn | None, role: str, mark: OpenRole | None, last: Piece | None
    ) -> None:
        self.before, self.role, self.mark, self.last = before, role, mark, last
        self._items: tuple[Item, ...] | None = None

    def pieces(self) -> list[Piece]:
        """The pieces, first to last."""
        found = []
        piece = self.last
        while piece is not None:
            found.append(piece)
            piece = piece.before
        return found[::-1]

    def items(self) -> tuple[Item, ...]:
        """The turn as items: a message, or several around the calls of tools."""
        if self._items is None:
            items: list[Item] = []
            parts: list[Part] = []
            for piece in self.pieces():
                value = piece.value
                if isinstance(value, str):
                    if parts and isinstance(last := parts[-1], Text):
                        parts[-1] = Text(last.text + value)
                    else:
                        parts.append(Text(value))
                elif isinstance(value, Reasoning):  # before the message: a turn has but one
                    items.append(value)
                elif isinstance(value, _ITEMS):
                    items += self._message(parts)
                    parts = []
                    items.append(value)
                else:
                    parts.append(cast("Part", value))
            self._items = (*items, *self._message(parts))
        return self._items

    def _message(self, parts: Sequence[Part]) -> Iterator[Message]:
        if not parts:
            return
        role: Any = self.role
        if len(parts) == 1 and isinstance(only := parts[0], Text):
            yield Message(role, only.text)  # some servers take no lists
        else:
            yield Message(role, tuple(parts))


_ITEMS = (Reasoning, FunctionCall, FunctionCallOutput, CustomToolCall, CustomToolCallOutput)


# ---- roles and blocks ------------------------------------------------------------------------


class _Scope(AbstractContextManager["_Scope"]):
    """A block of code in which a context variable has a value; `with`, or `async with`."""

    async def __aenter__(self) -> Self:
        self.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__(*error)


class OpenRole(Struct, eq=False):
    """The role block that the code is in; compared by identity. Once it is `closed`, another may be
    opened: that of a generator which was broken off is closed in another context."""

    name: str
    closed: bool = False


class Role(_Scope):
    """A role block. What is appended inside is one turn of this role."""

    def __init__(self, name: str) -> None:
        if name not in ROLES:
            known = ", ".join(ROLES)
            raise ValueError(f"there is no role {name!r}; the roles are {known}")
        self.name = name

    def __enter__(self) -> Self:
        outer = open_role.get()
        if outer is not None and not outer.closed:
            fix = f"end `with {outer.name}():` first"
            raise ValueError(f"{self.name} cannot be inside {outer.name}; {fix}")
        self._open = OpenRole(self.name)
        open_role.set(self._open)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.closed = True
        open_role.set(None)


class Block(_Scope):
    """A block whose text is captured under a name, between an opener and a closer."""

    def __init__(self, name: str | None, opener: str, closer: str) -> None:
        self.name, self.opener, self.closer = name, opener, closer

    def __enter__(self) -> Self:
        blocks = open_blocks.get()
        if self in blocks:
            raise ValueError("this block is open already; make another with block(…)")
        open_blocks.set((*blocks, self))
        return self

    def __exit__(self, *error: object) -> None:
        open_blocks.set(tuple(each for each in open_blocks.get() if each is not self))


open_role: ContextVar[OpenRole | None] = ContextVar("open_role", default=None)
open_blocks: ContextVar[tuple[Block, ...]] = ContextVar("open_blocks", default=())


def outside() -> Context:
    """This context without its role and blocks: that of a tool, which may run a program, too."""
    context = copy_context()
    context.run(open_role.set, None)
    context.run(open_blocks.set, ())
    return context


def system() -> Role:
    """A block of the system role: `with system(): lm += …`."""
    return Role("system")


def user() -> Role:
    """A block of the user role."""
    return Role("user")


def assistant() -> Role:
    """A block of the assistant role, in which the model generates."""
    return Role("assistant")


def role(name: str) -> Role:
    """A block of the role with this name."""
    return Role(name)


def block(name: str | None = None, *, opener: str = "", closer: str = "") -> Block:
    """A block whose text is captured: `with block("answer"): lm += …`."""
    return Block(name, opener, closer)


# ---- the state -------------------------------------------------------------------------------

NOTHING = Spent(round_trips=0)


class State:
    """The turns, captures and usage of a program. Immutable: every method returns a new state,
    which shares its past."""

    __slots__ = ("blocks", "captures", "partial", "turn", "usage")

    def __init__(
        self,
        turn: Turn | None = None,
        captures: Mapping[str, Capture | Listed] = {},
        usage: Spent = NOTHING,
        blocks: tuple[tuple[Block, Piece | None], ...] = (),
        partial: tuple[str, bool, Piece | None] | None = None,
    ) -> None:
        self.turn, self.captures, self.usage = turn, captures, usage
        self.blocks, self.partial = blocks, partial

    # ---- appending -------------------------------------------------------------------------

    def placed(self) -> State:
        """The state with the turn of the open role at its end, and the blocks that are open."""
        found = self.settled()
        current = open_role.get()
        if current is None:
            problem = "cannot append outside a role"
            raise ValueError(f"{problem}; write `with user():`, assistant or system around it")
        if found.turn is None or found.turn.mark is not current:
            turn = Turn(found.turn, current.name, current, None)
            found = State(turn, found.captures, found.usage, found.blocks)
        for each in open_blocks.get():
            if all(known is not each for known, _ in found.blocks):
                if each.opener:
                    found = found.added(each.opener)
                start = None if found.turn is None else found.turn.last
                blocks = (*found.blocks, (each, start))
                found = State(found.turn, found.captures, found.usage, blocks)
        return found

    def settled(self) -> State:
        """The state with the blocks closed whose `with` has ended."""
        if not self.blocks:
            return self
        current, found = open_blocks.get(), self
        for entry in reversed(self.blocks):
            closed, start = entry
            if any(each is closed for each in current):
                continue
            left = tuple(each for each in found.blocks if each is not entry)
            text = since(found.turn, start)
            found = State(found.turn, found.captures, found.usage, left)
            if closed.closer:
                found = found.added(closed.closer)
            if closed.name is not None:
                found = found.captured(closed.name, Capture(text))
        return found

    def added(self, value: str | Part | Item, **about: Any) -> State:
        """The state with this at the end of its last turn."""
        turn = self.turn
        if turn is None:
            raise ValueError("cannot append outside a role; write `with user():` around it")
        last = Piece(turn.last, value, **about)
        turn = Turn(turn.before, turn.role, turn.mark, last)
        return State(turn, self.captures, self.usage, self.blocks)

    def captured(self, name: str, capture: Capture, *, append: bool = False) -> State:
        """The state with a capture."""
        known = self.captures.get(name)
        value: Capture | Listed = capture
        if append:
            if isinstance(known, Capture) and known.value != []:  # as by lm.set("list", [])
                raise ValueError(f"list_append: {name!r} was captured before, without list_append")
            value = Listed(capture, known if isinstance(known, Listed) else None)
        return State(self.turn, {**self.captures, name: value}, self.usage, self.blocks)

    def without(self, name: str) -> State:
        """The state without a capture."""
        left = {key: value for key, value in self.captures.items() if key != name}
        return State(self.turn, left, self.usage, self.blocks)

    def spending(self, usage: Spent) -> State:
        """The state with more usage."""
        usage = usage if self.usage is NOTHING else summed(self.usage, usage)
        return State(self.turn, self.captures, usage, self.blocks)

    def streaming(self, name: str | None, append: bool, start: Piece | None) -> State:
        """The state as a snapshot, in which what comes after a piece is captured already."""
        partial = None if name is None else (name, append, start)
        return State(self.turn, self.captures, self.usage, self.blocks, partial)

    # ---- reading ---------------------------------------------------------------------------

    def turns(self) -> list[Turn]:
        """The turns that are not empty, first to last."""
        found = []
        turn = self.turn
        while turn is not None:
            if turn.last is not None:
                found.append(turn)
            turn = turn.before
        return found[::-1]

    def items(self) -> list[Item]:
        """The conversation."""
        return [item for turn in self.turns() for item in turn.items()]

    def capture(self, name: str) -> Capture | list[Capture] | None:
        """The capture of a name, or a list where captures were appended."""
        found = self.captures.get(name)
        if self.partial is not None and self.partial[0] == name:
            _, append, start = self.partial
            now = Capture(since(self.turn, start), end="unfinished")
            if not append:
                return now
            return [*(found.all() if isinstance(found, Listed) else ()), now]
        return found.all() if isinstance(found, Listed) else found

    def names(self) -> list[str]:
        """The names of the captures."""
        names = list(self.captures)
        if self.partial is not None and self.partial[0] not in names:
            names.append(self.partial[0])
        return names

    def prefix(self) -> str:
        """The text since the last part or item of the last turn, without reasoning."""
        texts = []
        piece = None if self.turn is None else self.turn.last
        while piece is not None and isinstance(value := piece.value, str | Reasoning):
            texts.append(value if isinstance(value, str) else "")
            piece = piece.before
        return "".join(reversed(texts))

    def __str__(self) -> str:
        """The conversation as text, with marks around the turns; an open turn has none at its
        end."""
        current = open_role.get()
        shown = []
        for turn in self.turns():
            body = "".join(map(_shown, (piece.value for piece in turn.pieces())))
            opened = turn is self.turn and current is not None and turn.mark is current
            end = "" if opened else "<|im_end|>\n"
            shown.append(f"<|im_start|>{turn.role}\n{body}{end}")
        return "".join(shown)


def since(turn: Turn | None, start: Piece | None) -> str:
    """The text of a turn after one of its pieces (None: all of it)."""
    texts = []
    piece = None if turn is None else turn.last
    while piece is not None and piece is not start:
        if isinstance(piece.value, str):
            texts.append(piece.value)
        piece = piece.before
    return "".join(reversed(texts))


def _shown(value: str | Part | Item) -> str:
    match value:
        case str():
            return value
        case Image():
            return "[IMAGE]"
        case Audio(transcript=transcript):
            return transcript or "[AUDIO]"
        case FunctionCall(name=name, text=text) | CustomToolCall(name=name, text=text):
            return f"<tool={name}>{text}</tool>"
        case (
            FunctionCallOutput(call_id=id, output=output)
            | CustomToolCallOutput(call_id=id, output=output)
        ):
            return f"\n<tool_result={id}>{_plain(output)}</tool_result>\n"
        case Refusal(text=text):
            return text
    return ""


def _plain(output: str | tuple[Part, ...]) -> str:
    return output if isinstance(output, str) else "".join(map(_shown, output))


def summed(one: Spent, other: Spent) -> Spent:
    """The sum of two usages; the time to the first token is that of the first."""
    own = {"round_trips", "time_to_first_token", "latency"}
    plain = [
        Usage(**{k: v for k, v in asdict(each).items() if k not in own}) for each in (one, other)
    ]
    total = add_usage(plain)
    first = one.time_to_first_token
    return Spent(
        **({} if total is None else asdict(total)),
        round_trips=one.round_trips + other.round_trips,
        time_to_first_token=other.time_to_first_token if first is None else first,
        latency=one.latency + other.latency,
    )


# ---- files -----------------------------------------------------------------------------------


class _SavedPiece(Struct, omit_defaults=True):
    text: str | None = None
    part: Part | None = None
    item: Item | None = None
    generated: bool = False
    tokens: tuple[Token, ...] = ()
    seconds: float = 0.0
    guarantee: Guarantee | None = None


class _SavedTurn(Struct):
    role: RoleName
    pieces: list[_SavedPiece]


class _SavedCapture(Capture, frozen=True, omit_defaults=True):
    binary: bool = False
    """Whether the value is the base64 of bytes."""


class _Saved(Struct):
    version: int
    turns: list[_SavedTurn]
    captures: dict[str, _SavedCapture | list[_SavedCapture]]
    usage: Spent


_ABOUT = ("generated", "tokens", "seconds", "guarantee")
VERSION = 1
"""Of saved programs."""


def dump(state: State) -> bytes:
    """A state as JSON. Raises TypeError for a capture that is none."""
    turns = []
    for turn in state.turns():
        pieces = []
        for piece in turn.pieces():
            value = piece.value
            kind = "part"
            if isinstance(value, str):
                kind = "text"
            elif isinstance(value, _ITEMS):
                kind = "item"
            about: dict[str, Any] = {name: getattr(piece, name) for name in _ABOUT}
            about[kind] = value
            pieces.append(_SavedPiece(**about))
        turns.append(_SavedTurn(cast("RoleName", turn.role), pieces))
    captures: dict[str, _SavedCapture | list[_SavedCapture]] = {}
    for name, found in state.captures.items():
        captures[name] = [*map(_saved, found.all())] if isinstance(found, Listed) else _saved(found)
    saved = _Saved(VERSION, turns, captures, state.usage)
    try:
        return msgspec.json.encode(saved)
    except UnicodeEncodeError:  # a model wrote half of a surrogate pair
        return json.dump(msgspec.to_builtins(saved))


def _saved(capture: Capture) -> _SavedCapture:
    return _SavedCapture(**asdict(capture), binary=isinstance(capture.value, bytes))


def load(data: bytes) -> State:
    """A state that `dump` gave. Raises ValueError for anything else."""
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version != VERSION:
            raise ValueError(f"version {version} of a saved program is not supported")
        saved = msgspec.json.decode(data, type=_Saved)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"this is no saved program: {error}") from None
    captures: dict[str, Capture | Listed] = {}
    for name, value in saved.captures.items():
        if not isinstance(value, list):
            captures[name] = _restored(value)
            continue
        chain: Listed | None = None
        for each in value:
            chain = Listed(_restored(each), chain)
        if chain is not None:
            captures[name] = chain
    turn: Turn | None = None
    for each_turn in saved.turns:
        last: Piece | None = None
        for piece in each_turn.pieces:
            about = {name: getattr(piece, name) for name in _ABOUT}
            held = next(x for x in (piece.text, piece.part, piece.item, "") if x is not None)
            last = Piece(last, held, **about)
        turn = Turn(turn, each_turn.role, None, last)
    return State(turn, captures, saved.usage)


def _restored(saved: _SavedCapture) -> Capture:
    about = asdict(saved)
    if about.pop("binary"):
        about["value"] = base64.b64decode(str(saved.value))
    return Capture(**about)


def without_space(message: Message) -> Message:
    """An unfinished message without the space at its end."""
    content = message.content
    if isinstance(content, str):
        content = content[:-1]
    elif isinstance(last := content[-1], Text):
        content = (*content[:-1], replace(last, text=last.text[:-1]))
    return replace(message, content=content, status="in_progress")


def tokens_of(tokens: Sequence[Token], start: int, text: str) -> list[Token]:
    """The tokens of a text that begins at position `start` of their concatenation."""
    found: list[Token] = []
    at, end = 0, start + len(text)
    for token in tokens:
        after = at + len(token.text)
        if after > start and at < end:
            found.append(token)
        at = after
    return found
