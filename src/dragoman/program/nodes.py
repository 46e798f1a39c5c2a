"""The nodes of a program: texts, roles, generation and captures, as frozen values.

A node in an f-string is a tag there, which is read back when the string becomes a node.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import asdict, replace

from dragoman.core.item import JSON
from dragoman.core.item import Audio as AudioPart
from dragoman.core.item import Image as ImagePart
from dragoman.core.response import Guarantee
from dragoman.tools.run import Tool as RunnableTool


class Node(Struct, frozen=True):
    """A piece of a program. Nodes and texts are joined with `+`; in an f-string they are joined to
    the text around them."""

    def __add__(self, other: object) -> Node:
        return join((self, node(other)))

    def __radd__(self, other: object) -> Node:
        return join((node(other), self))

    def __str__(self) -> str:
        return _tag(self)

    def __format__(self, spec: str) -> str:
        if spec:
            raise ValueError(f"a node in an f-string takes no format, and {spec!r} was given")
        return _tag(self)

    def __iter__(self) -> NoReturn:
        raise TypeError("a node has no elements; use `for delta in lm.stream(node)` to stream it")


# ---- nodes in f-strings ----------------------------------------------------------------------

_SECRET = secrets.token_hex(8)  # so that no text from elsewhere has a tag in it
_TAG = re.compile(rf"<<node {_SECRET} (\d+)>>")
_tagged: OrderedDict[int, Node] = OrderedDict()
_numbers = itertools.count()
MOST_TAGGED = 100_000
"""Nodes in f-strings that were not used yet; the oldest are forgotten."""


def _tag(tagged: Node) -> str:
    number = next(_numbers)
    _tagged[number] = tagged
    if len(_tagged) > MOST_TAGGED:
        _tagged.popitem(last=False)
    return f"<<node {_SECRET} {number}>>"


def _parsed(text: str) -> Node:
    """A text, with the nodes of its tags."""
    if _SECRET not in text:
        return Literal(text)
    parts: list[Node] = []
    for place, piece in enumerate(_TAG.split(text)):
        if place % 2 == 0:
            parts.append(Literal(piece))
        elif (found := _tagged.get(int(piece))) is not None:
            parts.append(found)
        else:
            raise ValueError("the node of this f-string is forgotten; build the string anew")
    return join(parts)


# ---- the nodes -------------------------------------------------------------------------------


class Literal(Node, frozen=True):
    """Text as it stands."""

    text: str


class Join(Node, frozen=True):
    """Nodes one after the other."""

    parts: tuple[Node, ...]


class Regex(Node, frozen=True):
    """Text that a regular expression matches from end to end."""

    pattern: str


class Select(Node, frozen=True):
    """One of several."""

    options: tuple[Node, ...]


class Json(Node, frozen=True):
    """JSON that fits a schema, whose keys are in the order of the schema."""

    schema: dict[str, JSON]
    separators: tuple[str, str] = (", ", ": ")


class Lark(Node, frozen=True):
    """Text of a grammar in llguidance's Lark dialect, or in GBNF."""

    text: str


class Repeat(Node, frozen=True):
    """A node `least` to `most` times."""

    body: Node
    least: int
    most: int | None


class Substring(Node, frozen=True):
    """A stretch of a text: of its chunks, words by default."""

    chunks: tuple[str, ...]


class Rule(Node, frozen=True):
    """The result of a stateless function, which may be recursive. `key` identifies it."""

    key: tuple[Any, ...]
    build: Callable[[], Node]


class Options(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How something is generated, and under which name it is captured."""

    name: str | None = None
    list_append: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    effort: str | None = None
    guarantee: Guarantee | None = None
    attempts: int | None = None


class Bound(Node, frozen=True):
    """A node with options: its text is captured, or generated in some way."""

    body: Node
    options: Options


class Gen(Node, frozen=True):
    """Generated text, up to the model's own end or one of the stops."""

    options: Options
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    suffix: str = ""
    save_stop_text: str | None = None
    n: int | None = None
    tools: tuple[RunnableTool, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    max_rounds: int = 16


class Media(Node, frozen=True):
    """An image or a sound that is shown to the model."""

    part: ImagePart | AudioPart


class GenAudio(Node, frozen=True):
    """Generated speech: its transcript is the text, its sound is captured as a WAV file."""

    options: Options
    voice: str = "alloy"


class Call(Node, frozen=True):
    """A call of a program, which is run when its turn comes."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


EMPTY = Literal("")


def node(value: object) -> Node:
    """A node, or the node of a text. Raises TypeError for anything else, and says what to write."""
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return _parsed(value)
    fix = f"write str(…) for the text of {type(value).__name__}"
    if value is None:
        fix = "does a function lack its `return lm`?"
    elif isinstance(value, list | tuple | set):
        fix = "write select([…]) for one of several, or join texts and nodes with `+`"
    elif isinstance(value, bytes):
        fix = "write image(…) or audio(…)"
    elif hasattr(value, "__program__"):
        fix = "call the program: it is a node once it has its arguments"
    elif callable(value):
        fix = "decorate the function with @program, and call it; or pass it in gen(tools=[…])"
    elif hasattr(value, "captures"):
        fix = "the model stands at the left: `lm + node`"
    raise TypeError(f"{type(value).__name__} is neither text nor a node; {fix}")


def join(parts: Iterable[Node]) -> Node:
    """The nodes one after the other; texts next to each other are one.

    >>> join((Literal("a"), Join((Literal("b"), Regex("c")))))
    Join(parts=(Literal(text='ab'), Regex(pattern='c')))
    """
    flat: list[Node] = []
    for part in parts:
        for each in part.parts if isinstance(part, Join) else (part,):
            if isinstance(each, Literal):
                if not each.text:
                    continue
                if flat and isinstance(last := flat[-1], Literal):
                    flat[-1] = Literal(last.text + each.text)
                    continue
            flat.append(each)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Join(tuple(flat))


def loose(value: Node, seen: frozenset[object] | None = None) -> bool:
    """Whether a node is more than a grammar: free text, media, or a program. Rules are looked into
    only where `seen` is given: those that were, already."""
    match value:
        case Gen(stop=stop):
            whole = value.stop_regex or value.tools or value.n
            return bool(whole) or not stop or any(len(each) > 1 for each in stop)
        case Media() | GenAudio() | Call():
            return True
        case Join(parts=parts) | Select(options=parts):
            return any(loose(part, seen) for part in parts)
        case Repeat(body=body) | Bound(body=body):
            return loose(body, seen)
        case Rule(key=key, build=build) if seen is not None and key not in seen:
            return loose(build(), seen | {key})
    return False


def label(value: Node) -> str:
    """A node in a few words, for errors."""
    name: str | None = None
    if isinstance(value, Bound | Gen | GenAudio):
        name = value.options.name
    if isinstance(value, Bound):
        inner = label(value.body)
        return f"{inner[:-1]}, name={name!r})" if name else inner
    match value:
        case Select(options=options):
            shown = ", ".join(repr(o.text) for o in options[:3] if isinstance(o, Literal))
            about = f"[{shown}{', …' if len(options) > 3 else ''}]"
        case Regex(pattern=about):
            about = repr(about[:60])
        case Gen() | GenAudio():
            about = repr(name) if name else ""
        case Literal(text=text):
            about = repr(text[:40])
        case Json():
            about = "schema=…"
        case Lark():
            about = "…"
        case _:
            about = "…"
    kind = type(value.part if isinstance(value, Media) else value).__name__.lower()
    return f"{'gen_audio' if isinstance(value, GenAudio) else kind}({about})"


def merged(outer: Options, inner: Options) -> Options:
    """Options of a node inside another: its own take precedence, and names are not inherited."""
    given = {key: value for key, value in asdict(inner).items() if value is not None}
    return replace(outer, **{**given, "name": inner.name, "list_append": inner.list_append})
