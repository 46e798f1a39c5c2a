"""Writes nodes: `gen`, `select`, `regex`, `json` and the others, which check what they are given.

Building is pure: nothing is asked, and no file is read but that which `image` or `audio` is given.
"""

from __future__ import annotations

import base64
import json as stdlib_json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast
from typing import Literal as Word

from dragoman.core.error import FaultError
from dragoman.core.item import JSON
from dragoman.core.item import Audio as AudioPart
from dragoman.core.item import Image as ImagePart
from dragoman.core.response import Guarantee
from dragoman.formats.grammar.demand import lark as checked_lark
from dragoman.formats.grammar.schema import enforceable
from dragoman.tools.function import OutputType, PythonTool, as_tool
from dragoman.tools.run import Tool as RunnableTool

from .grammar import check, to_lark
from .nodes import (
    Bound,
    Gen,
    GenAudio,
    Json,
    Lark,
    Literal,
    Media,
    Node,
    Options,
    Regex,
    Repeat,
    Select,
    Substring,
    join,
    label,
    loose,
    node,
)

_GUARANTEES = (None, "enforced", "verified", "best-effort")


class NodeOptions(TypedDict, total=False):
    """Options of all generated nodes: whether to append to a list under the name, the limit of
    tokens, the temperature, the guarantee that is required, and the number of attempts."""

    list_append: bool
    max_tokens: int | None
    temperature: float | None
    guarantee: Guarantee | None
    attempts: int | None


def _options(given: dict[str, Any]) -> Options:
    """Options, checked."""
    name, most = given.get("name"), given.get("max_tokens")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is {type(name).__name__}, and must be a text")
    if name is None and given.get("list_append"):
        raise ValueError("list_append needs the name of the list: add name=…")
    if most is not None and (type(most) is not int or most < 1):
        raise ValueError(f"max_tokens is {most!r}, and must be a whole number from 1")
    for key in ("temperature", "top_p", "min_p"):
        value = given.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{key} is {type(value).__name__}, and must be a number")
    if given.get("guarantee") not in _GUARANTEES:
        known = "enforced, verified or best-effort"
        raise ValueError(f"guarantee is {given['guarantee']!r}, and must be {known}")
    if (attempts := given.get("attempts")) is not None and attempts < 1:
        raise ValueError(f"attempts is {attempts}, and must be 1 at least")
    return Options(**given)


def _bound(body: Node, **given: Any) -> Node:
    options = _options(given)
    return body if options == Options() else Bound(body, options)


def _texts(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    found: tuple[object, ...] = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(text, str) and text for text in found):
        raise ValueError(f"{name} must be a text that is not empty, or a list of such")
    return cast("tuple[str, ...]", found)


def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    suffix: str = "",
    save_stop_text: bool | str = False,
    list_append: bool = False,
    n: int | None = None,
    regex: str | None = None,
    tools: Sequence[RunnableTool | Callable[..., Any]] = (),
    tool_choice: str | None = None,
    parallel_tool_calls: bool | None = None,
    max_rounds: int = 16,
    effort: str | None = None,
    guarantee: Guarantee | None = None,
    attempts: int | None = None,
) -> Node:
    """Generate text, and capture it under `name`.

    It ends where the model ends, at a `stop` (a text, or several), where a `stop_regex` matches, or
    after `max_tokens`. The stop is not part of the text; `save_stop_text` captures it, under
    `{name}_stop_text` or the name given. `suffix` follows the text. With `regex` all of the text
    matches that; see `regex`. With `n` the capture is a list of as many answers, of which the
    program continues with the first. With `tools` (functions, or tools) the model may call them,
    until it has answered or `max_rounds` times; `tool_choice` (`auto`, `required`, or a name) is
    for the first round, and `parallel_tool_calls` says whether there may be several in one.
    `effort` is the reasoning effort.
    """
    stops, patterns = _texts("stop", stop), _texts("stop_regex", stop_regex)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"stop_regex {pattern!r} is no regular expression: {error}") from None
    saved = f"{name}_stop_text" if save_stop_text is True else save_stop_text or None
    if save_stop_text is True and name is None:
        raise ValueError("save_stop_text=True needs a name; or give the name to save it under")
    if n is not None and (n < 1 or (tools and n > 1)):
        raise ValueError(f"n is {n}; it must be 1 at least, and 1 beside tools")
    given = {
        "name": name,
        "list_append": list_append,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "effort": effort,
        "guarantee": guarantee,
        "attempts": attempts,
    }
    if regex is not None:
        if stops or patterns or tools or n or saved:
            raise ValueError("regex says where the text ends: leave out stop, n and tools")
        return join((_bound(Regex(_pattern(regex)), **given), Literal(suffix)))
    if callable(tools):
        raise TypeError("tools is a list: write tools=[…]")
    found = tuple(as_tool(each) for each in tools)
    names = [tool.spec.name for tool in found]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise ValueError(f"there are two tools with the name {twice!r}")
    for tool in found:
        if tool.approval != "never" or tool.after != "model":
            setting = "after" if tool.approval == "never" else "approval"
            problem = f"the tool {tool.spec.name!r} has {setting}={getattr(tool, setting)!r}"
            raise ValueError(f"{problem}, and a program asks no user: give it to an Agent")
    if tool_choice is not None and tool_choice not in ("auto", "required", "none", *names):
        known = ", ".join(("auto", "required", "none", *names))
        raise ValueError(f"tool_choice is {tool_choice!r}, and must be one of {known}")
    return Gen(
        _options(given),
        stop=stops,
        stop_regex=patterns,
        suffix=suffix,
        save_stop_text=saved,
        n=n,
        tools=found,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        max_rounds=max_rounds,
    )


def select(options: Iterable[object], name: str | None = None, **how: Unpack[NodeOptions]) -> Node:
    """One of several: texts, numbers or nodes.

    >>> from dragoman.program import match
    >>> match(select(["yes", "no"], name="answer"), "no").captures
    {'answer': 'no'}
    """
    if isinstance(options, str | bytes) or not isinstance(options, Iterable):
        raise TypeError("select takes a list of options: write select([…])")
    found = tuple(
        Literal(str(each)) if isinstance(each, int | float) else node(each) for each in options
    )
    if not found:
        raise ValueError("select was given no options")
    if free := next(
        (each for each in found if not isinstance(each, Literal) and loose(each)), None
    ):
        raise ValueError(f"select chooses among texts and grammars, and {label(free)} is neither")
    return _bound(Select(found), name=name, **how)


def _pattern(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"a regular expression is a text, and this is {type(pattern).__name__}")
    check(Regex(pattern))
    return pattern


def regex(pattern: str, name: str | None = None, **options: Unpack[NodeOptions]) -> Node:
    """Text that a regular expression (of Rust's kind: no looking around) matches from end to end.
    Raises ValueError for what is none.

    >>> from dragoman.program import match
    >>> match("in " + regex("[0-9]{4}", name="year"), "in 1815")["year"]
    '1815'
    """
    return _bound(Regex(_pattern(pattern)), name=name, **options)


def json(
    name: str | None = None,
    *,
    schema: Any = None,
    separators: tuple[str, str] | None = None,
    **options: Unpack[NodeOptions],
) -> Node:
    """JSON that fits a schema: a dict, its JSON text, or a type that msgspec or pydantic knows;
    without one (None, or True) any JSON. `separators` are those of `json.dumps`.

    Raises ValueError, naming the keyword, for a schema that cannot be enforced.

    >>> from dragoman.program import match
    >>> match(json(schema={"type": "integer"}), "12") is not None
    True
    """
    if isinstance(schema, str):
        try:
            schema = stdlib_json.loads(schema)
        except ValueError as error:
            raise ValueError(f"the schema is no JSON: {error}") from None
    if schema is False:
        raise ValueError("the schema False allows nothing at all")
    if schema is None or schema is True:
        schema = {}
    elif hasattr(schema, "json_schema") and not isinstance(schema, type):  # a TypeAdapter
        schema = schema.json_schema()
    elif not isinstance(schema, Mapping):
        schema = _schema_of(schema)
    if isinstance(schema, Mapping) and not _text_keys(schema):
        raise TypeError("the keys of a schema, and of all in it, are texts")
    try:
        fitted = enforceable(schema, "schema")
    except FaultError as error:
        raise ValueError(error.fault.message) from None
    if separators is not None and len(separators) != 2:
        raise ValueError("separators are two texts: between items, and after a key")
    body = Json(fitted, separators or (", ", ": "))
    check(body)
    return _bound(body, name=name, **options)


def _schema_of(kind: Any) -> dict[str, JSON]:
    schema = OutputType(kind).format.schema or {}
    inner = schema.get("properties", {}).get("value")
    if inner is not None and set(schema.get("properties", {})) == {"value"}:
        named = getattr(kind, "__annotations__", None)
        if not named or set(named) != {"value"}:  # put around what is no object
            defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            return {**inner, **defs}
    return schema


def _text_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _text_keys(each) for key, each in value.items())
    return not isinstance(value, list | tuple) or all(map(_text_keys, value))


def lark(text: str, name: str | None = None, **options: Unpack[NodeOptions]) -> Node:
    """Text of a grammar: in Lark, as llguidance has it, whose first rule is `start`; or in GBNF.
    Raises ValueError for what is no grammar.

    >>> from dragoman.program import match
    >>> match(lark('start: "a" start?'), "aaa") is not None
    True
    """
    try:
        body = Lark(checked_lark("the grammar", text).lark)
    except FaultError as error:
        raise ValueError(error.fault.message) from None
    check(body)
    return _bound(body, name=name, **options)


def grammar(value: object, name: str | None = None, **options: Unpack[NodeOptions]) -> Node:
    """Nodes and texts as one grammar: generated in one request, as a whole.

    >>> from dragoman.program import match
    >>> match(grammar("a" + regex("[0-9]", name="digit"), name="all"), "a1").captures
    {'all': 'a1', 'digit': '1'}
    """
    body = node(value)
    if loose(body):
        raise ValueError(f"a grammar has no place for {label(body)}: give gen a regex or a stop")
    return Bound(body, _options({"name": name, **options}))


def repeat(value: object, least: int = 0, most: int | None = None) -> Node:
    """A node `least` to `most` times; without `most` any number of times.

    >>> from dragoman.program import match
    >>> match(repeat("ab", 1, 2), "ababab")
    """
    if least < 0 or (most is not None and most < max(least, 1)):
        raise ValueError(f"from {least} to {most} times cannot be: most must be {least} or more")
    body = node(value)
    if loose(body):
        raise ValueError(f"{label(body)} cannot be repeated: give it a regex or a stop")
    return Repeat(body, least, most)


def optional(value: object) -> Node:
    """A node, or nothing."""
    return repeat(value, 0, 1)


def one_or_more(value: object) -> Node:
    """A node, any number of times, but once at least."""
    return repeat(value, 1)


def zero_or_more(value: object) -> Node:
    """A node, any number of times."""
    return repeat(value)


def sequence(value: object, min_length: int = 0, max_length: int | None = None) -> Node:
    """The same as `repeat`."""
    return repeat(value, min_length, max_length)


def substring(
    target: str,
    *,
    chunk: Word["word", "character"] | Callable[[str], Iterable[str]] = "word",
    name: str | None = None,
    **options: Unpack[NodeOptions],
) -> Node:
    """A stretch of a text, of whole words by default; a function may cut it into other chunks.

    >>> from dragoman.program import match
    >>> match(substring("the quick brown fox"), "quick brown") is not None
    True
    """
    if callable(chunk):
        chunks = tuple(chunk(target))
        if "".join(chunks) != target:
            raise ValueError("the chunks of substring, joined, must be the text itself")
    elif chunk == "word":
        chunks = tuple(re.findall(r"\s+|\S+", target))
    elif chunk == "character":
        chunks = tuple(target)
    else:
        raise ValueError(f"chunk is {chunk!r}, and must be word, character or a function")
    if not chunks:
        raise ValueError("substring was given an empty text")
    return _bound(Substring(chunks), name=name, **options)


def capture(value: object, name: str, *, list_append: bool = False) -> Node:
    """Capture the text of a node under a name."""
    return Bound(node(value), _options({"name": name, "list_append": list_append}))


def token_limit(value: object, max_tokens: int) -> Node:
    """A node for which at most so many tokens are generated."""
    return Bound(node(value), _options({"max_tokens": max_tokens}))


def with_temperature(value: object, temperature: float) -> Node:
    """A node that is generated at a temperature, where it has none of its own."""
    return Bound(node(value), _options({"temperature": temperature}))


# ---- media -----------------------------------------------------------------------------------

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)
_URL = re.compile(r"(https?://|data:)", re.IGNORECASE)


def image(source: str | Path | bytes, *, detail: str | None = None) -> Node:
    """An image for the model: a file of this program's, its bytes, or an address, which is sent as
    it is. Raises ValueError for bytes of no known format."""
    if isinstance(source, str) and _URL.match(source):
        return Media(ImagePart(url=source, detail=detail))
    data = _bytes(source, "image")
    kind = next((kind for mark, kind in _IMAGES if data.startswith(mark)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise ValueError("these bytes are no image: PNG, JPEG, GIF, WebP and BMP are known here")
    encoded = base64.b64encode(data).decode()
    return Media(ImagePart(url=f"data:image/{kind};base64,{encoded}", detail=detail))


def audio(source: str | Path | bytes) -> Node:
    """A sound for the model: a WAV or MP3 file of this program's, or its bytes. Raises ValueError
    for another format."""
    data = _bytes(source, "audio")
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        kind = "wav"
    elif data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2):
        kind = "mp3"
    else:
        raise ValueError("these bytes are no sound: WAV and MP3 are known here")
    return Media(AudioPart(data=base64.b64encode(data).decode(), format=kind))


def _bytes(source: str | Path | bytes, kind: str) -> bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if not isinstance(source, str | Path):
        raise TypeError(f"{kind} takes a path, bytes or an address, not {type(source).__name__}")
    return Path(source).read_bytes()


def gen_audio(
    name: str | None = None, *, voice: str = "alloy", **options: Unpack[NodeOptions]
) -> Node:
    """Let the model speak aloud: the transcript is the text of the program, and the capture is a
    WAV file of 24 kHz, in bytes."""
    return GenAudio(_options({"name": name, **options}), voice)


class Tool(PythonTool):
    """A tool for `gen(tools=…)`; a function alone will do. See `dragoman.tool`."""

    @staticmethod
    def from_callable(
        function: Callable[..., Any], *, name: str | None = None, description: str | None = None
    ) -> PythonTool:
        """The tool of a typed function, whose schema is that of its annotations."""
        return PythonTool(function, name=name, description=description)

    @staticmethod
    def from_regex(pattern: str, function: Callable[[str], Any], **about: str) -> PythonTool:
        """A tool that takes text which matches a regular expression."""
        return PythonTool(function, grammar=("regex", _pattern(pattern)), **cast(Any, about))

    @staticmethod
    def from_lark(text: str, function: Callable[[str], Any], **about: str) -> PythonTool:
        """A tool that takes text of a Lark grammar."""
        return PythonTool(function, grammar=("lark", text), **cast(Any, about))

    @staticmethod
    def from_grammar(value: object, function: Callable[[str], Any], **about: str) -> PythonTool:
        """A tool that takes text of a grammar made of nodes."""
        return PythonTool(function, grammar=("lark", to_lark(node(value))), **cast(Any, about))
