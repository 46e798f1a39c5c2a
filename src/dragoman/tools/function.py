"""Makes a tool of a typed, documented Python function: its schema, its arguments, its result."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from contextlib import suppress
from functools import partial, update_wrapper
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Optional,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

import msgspec

from dragoman.core.item import JSON, Message, Part, Text
from dragoman.core.request import CustomTool, FunctionTool, JSONSchema
from dragoman.net.threads import BusyError, Threads

from .run import LONGEST, Approval, Context, Display, Next, Output, Tool, ToolError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PARTS = tuple(get_args(Part))


class PythonTool:
    """A tool around a function. It is called like the function itself; see `tool`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        schema: dict[str, JSON] | None = None,
        grammar: tuple[Literal["lark", "regex"], str] | None = None,
        custom: bool = False,
        strict: bool | None = None,
        after: Next = "model",
        auto_retry: bool = True,
        auto_truncate: int | None = None,
        enabled: bool = True,
        approval: Approval = "never",
        seconds: float | None = None,
        repeatable: bool = False,
    ) -> None:
        update_wrapper(self, function)
        self.after, self.approval, self.enabled = after, approval, enabled
        self.auto_retry, self.auto_truncate = auto_retry, auto_truncate
        self.seconds, self.repeatable = seconds, repeatable
        self.display: Display | None = None
        self._function = function
        name = str(name or getattr(function, "__name__", ""))
        if isinstance(approval, str) and approval not in ("always", "never"):
            raise ValueError(
                f"{name}: approval is {approval!r}, and must be always, never, or a rule"
            )
        if after not in get_args(Next):
            raise ValueError(f"{name}: after is {after!r}, and must be model or user")
        numbers: dict[str, tuple[Any, type]] = {
            "seconds": (seconds, Real),
            "auto_truncate": (auto_truncate, Integral),
        }
        for option, (value, kind) in numbers.items():
            if value is not None and not isinstance(value, kind):
                problem = f"is of type {type(value).__name__}, and must be {kind.__name__}"
                raise TypeError(f"{name}: {option}: {problem}")
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: an asynchronous generator is no tool; return a list")
        if not _NAME.fullmatch(name):
            raise TypeError(f"{name!r} is no name for a tool: letters, digits, _ and -, at most 64")
        signature = _signature(function, name)
        words, described = _documentation(inspect.getdoc(function) or "")
        about = description if description is not None else words or None
        self._context = next((n for n, (kind, _) in signature.items() if _is_context(kind)), None)
        fields = {n: each for n, each in signature.items() if n != self._context}
        self.spec: FunctionTool | CustomTool
        if custom or grammar is not None:
            if len(fields) != 1:
                raise TypeError(f"{name}: a custom tool takes the model's text, and nothing else")
            self._text, self._arguments = next(iter(fields)), None
            syntax, rules = grammar or (None, None)
            self.spec = CustomTool(name, about, syntax, rules)
            return
        self._arguments = _struct(name, fields, described)
        parameters = schema if schema is not None else _schema(self._arguments)
        self.spec = FunctionTool(name, about, parameters, strict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    async def call(self, text: str, context: Context) -> Output:
        """Run the function on what the model wrote; a function that is not asynchronous runs in a
        thread. Raises ToolError for arguments that do not fit, and what the function raises."""
        if self._arguments is None:
            values: dict[str, Any] = {self._text: text}
        else:
            values = _converted(text, self._arguments)
        if self._context is not None:
            values[self._context] = context
        if inspect.iscoroutinefunction(self._function):
            result = await self._function(**values)
        else:
            most = self.auto_truncate or LONGEST
            result = await in_thread(partial(_called, self._function, values, most))
            if not isinstance(result, Awaitable):
                return cast("Output", result)
            result = await result
        # What is large takes its time to be written as JSON.
        return result if isinstance(result, str) else await in_thread(partial(_output, result))


@overload
def tool(function: Callable[..., Any], /) -> PythonTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: dict[str, JSON] | None = None,
    grammar: tuple[Literal["lark", "regex"], str] | None = None,
    custom: bool = False,
    strict: bool | None = None,
    after: Next = "model",
    auto_retry: bool = True,
    auto_truncate: int | None = None,
    enabled: bool = True,
    approval: Approval = "never",
    seconds: float | None = None,
    repeatable: bool = False,
) -> Callable[[Callable[..., Any]], PythonTool]: ...
def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """A decorator that makes a tool of a typed function, with or without settings.

    Its schema is that of the annotations: any type that msgspec or pydantic knows, Literal, enums,
    dataclasses, TypedDict. A parameter with a default is optional. The description is the first
    part of the docstring; that of a parameter is the text in its `Annotated`, or its line in the
    docstring. A parameter of type `Context` is not shown to the model, and gets the call's.

    `grammar` (`"lark"` or `"regex"`, and the rules) or `custom` make a tool that takes free text.
    The other settings are those of `dragoman.tools.run.Tool`. Raises TypeError for a function with
    a parameter that has no type, or that is positional only or variadic.

    >>> @tool
    ... def weather(city: Annotated[str, "a city's name"], days: int = 1) -> str:
    ...     "The weather of the next days."
    ...     return f"{city}: sunny for {days} days"
    >>> weather.spec.parameters["properties"]["city"]
    {'description': "a city's name", 'type': 'string'}
    >>> weather.spec.parameters["required"]
    ['city']
    >>> weather("Rome")
    'Rome: sunny for 1 days'
    """
    return PythonTool(function, **settings) if function else partial(PythonTool, **settings)


def as_tool(given: Tool | Callable[..., Any]) -> Tool:
    """A tool, or the tool of a function. Raises TypeError for anything else."""
    if hasattr(given, "call") and hasattr(given, "spec"):
        return cast("Tool", given)
    if not callable(given):
        raise TypeError(f"{type(given).__name__} is neither a tool nor a function")
    return PythonTool(given)


# ---- what a function takes -------------------------------------------------------------------


def _signature(function: Callable[..., Any], name: str) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each parameter."""
    typed: Any = function
    while isinstance(typed, partial):
        typed = typed.func
    if not inspect.isroutine(typed) and not inspect.isclass(typed):
        typed = type(typed).__call__
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(typed, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: its types cannot be looked up: {error}") from None
    found: dict[str, tuple[Any, Any]] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: {parameter.name} is variadic, and has no place in a schema")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: {parameter.name} is positional only, and cannot be named")
        if parameter.name not in hints:
            raise TypeError(f"{name}: {parameter.name} has no type")
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        found[parameter.name] = hints[parameter.name], default
    return found


def _is_context(kind: Any) -> bool:
    return kind is Context or Context in get_args(kind)


_SECTION = re.compile(r"^(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_OTHERS = re.compile(r"^(returns?|raises|yields|examples?|notes?)\s*:?\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"^\s*\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s+(\S.*)$")
_NUMPY = re.compile(r"^\*{0,2}(\w+)(?:, \w+)*\s*(?::.*)?$")
_FIELD = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_OTHER_FIELD = re.compile(r"^\s*:\w+[^:]*:")


def _documentation(text: str) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and those of parameters: an "Args:" section, `:param`, or the
    underlined "Parameters" of numpy."""
    about: list[str] = []
    described: dict[str, str] = {}
    section, latest, underlined = "", "", False
    for line in text.splitlines():
        if section and not latest and line and not line.strip("-"):
            underlined = True
        elif underlined and section == "args" and (found := _NUMPY.match(line)):
            latest, described[found[1]] = found[1], ""
        elif _SECTION.match(line) or _OTHERS.match(line):
            section, latest = ("args" if _SECTION.match(line) else "other"), ""
        elif found := _FIELD.match(line):
            section, latest = "fields", found[1]
            described[latest] = found[2].strip()
        elif _OTHER_FIELD.match(line):
            section, latest = "fields", ""
        elif (
            section == "args"
            and (found := _ENTRY.match(line))
            and not (latest and line.startswith("        "))
        ):
            latest = found[1]
            described[latest] = found[2].strip()
        elif section in ("args", "other") and line and not (underlined or line.startswith(" ")):
            section, latest = "", ""
            about.append(line)
        elif section in ("args", "fields") and latest and line.strip():
            described[latest] = f"{described[latest]} {line.strip()}".strip()
        elif not section:
            about.append(line)
    return "\n".join(about).strip(), described


class _Adapted:
    """The value of a parameter whose type is pydantic's to read; each such type has a subclass."""

    adapter: ClassVar[Any]

    def __init__(self, value: Any) -> None:
        self.value = value


def _readable(kind: Any, notes: Sequence[Any], name: str) -> Any:
    """A type that msgspec can read: the same one, or one that lets pydantic read it."""
    theirs = any(
        type(note).__module__.startswith(("pydantic", "annotated_types")) for note in notes
    )
    if not theirs:
        for note in notes:
            if isinstance(note, msgspec.Meta):
                kind = Annotated[kind, note]
        try:
            msgspec.json.schema_components([kind])
            with suppress(msgspec.ValidationError):
                msgspec.convert(_NOTHING, kind)
        except TypeError:
            pass
        else:
            return kind
    try:
        from pydantic import TypeAdapter

        adapter = TypeAdapter(Annotated[(kind, *notes)] if notes else kind)
        adapter.json_schema()
    except Exception:
        problem = f"{kind!r} is no type that msgspec or pydantic has a schema for"
        raise TypeError(f"{name}: {problem}") from None
    return type("Adapted", (_Adapted,), {"adapter": adapter})


_NOTHING = object()


def _struct(
    name: str, fields: dict[str, tuple[Any, Any]], described: dict[str, str]
) -> type[msgspec.Struct]:
    """A struct of the parameters, which converts arguments and has their schema."""
    found: list[tuple[str, Any, Any]] = []
    for parameter, (kind, default) in fields.items():
        about = described.get(parameter)
        notes: list[Any] = []
        if get_origin(kind) is Annotated:
            kind, *given_notes = get_args(kind)
            about = next((note for note in given_notes if isinstance(note, str)), about)
            notes = [note for note in given_notes if not isinstance(note, str)]
        if type(default).__name__ == "FieldInfo":  # pydantic's
            notes, default = [*notes, default], default.default
            if repr(default) == "PydanticUndefined":
                default = msgspec.NODEFAULT
        if default is None:
            kind = Optional[kind]  # noqa: UP045  # `|` does not take every type
        kind = _readable(kind, notes, f"{name}: {parameter}")
        if about:
            kind = Annotated[kind, msgspec.Meta(description=about)]
        given = default
        if default is not msgspec.NODEFAULT:
            given = msgspec.field(default_factory=partial(_same, default))
        found.append((parameter, kind, given))
    # A name that no type of the user's has.
    return msgspec.defstruct(f"{name} arguments", found, kw_only=True, forbid_unknown_fields=True)


def _same(value: Any) -> Any:
    return value


def _schema(struct: type[msgspec.Struct]) -> dict[str, JSON]:
    """The schema of the parameters: without titles, with definitions used once in their place."""
    (top,), definitions = msgspec.json.schema_components([struct], schema_hook=_adapted_schema)
    _add_formats(msgspec.inspect.type_info(struct), top, dict(definitions), set())
    root = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT:
            root["properties"][field.name].pop("default", None)
            with suppress(
                TypeError, ValueError, RecursionError, AttributeError
            ):  # it has no place in a schema
                default = msgspec.to_builtins(field.default_factory(), enc_hook=_dumped)
                json.dumps(default, allow_nan=False)
                root["properties"][field.name]["default"] = default
    return plain_schema({**root, "$defs": definitions})


def _add_formats(kind: Any, schema: JSON, definitions: Any, seen: set[str]) -> None:
    """Add the formats of dates with times, and of times, which msgspec gives to those alone that
    must have a zone: as pydantic does, and as a grammar enforces them."""
    types = msgspec.inspect
    while isinstance(kind, types.Metadata):
        kind = kind.type
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in seen or name not in definitions:
            return
        seen.add(name)
        schema = definitions[name]
    inner: Iterable[tuple[Any, JSON]] = ()
    match kind:
        case types.DateTimeType(tz=None):
            schema.setdefault("format", "date-time")
        case types.TimeType(tz=None):
            schema.setdefault("format", "time")
        case types.DictType():
            inner = [(kind.value_type, schema.get("additionalProperties"))]
        case types.CollectionType():
            inner = [(kind.item_type, schema.get("items"))]
        case types.TupleType():
            inner = zip(kind.item_types, schema.get("prefixItems", ()), strict=False)
        case types.UnionType():
            inner = _alternatives(kind, schema.get("anyOf", ()))
        case _ if hasattr(kind, "fields"):
            own = schema.get("properties", {})
            rows = schema.get("prefixItems", ())  # a tag may come first
            inner = [(each.type, own.get(each.encode_name)) for each in kind.fields if own]
            kinds = [each.type for each in kind.fields]
            inner += zip(reversed(kinds), reversed(rows), strict=False)
    for each, its in inner:
        _add_formats(each, its, definitions, seen)


def _alternatives(kind: Any, schemas: Iterable[Any]) -> Iterable[tuple[Any, JSON]]:
    """The types of a union with their schemas: structs stand together, behind the others."""
    structs, others = list[Any](), list[Any]()
    for each in kind.types:
        bare = each
        while isinstance(bare, msgspec.inspect.Metadata):
            bare = bare.type
        if isinstance(bare, msgspec.inspect.StructType) and not bare.array_like:
            structs.append(each)
        elif not isinstance(bare, msgspec.inspect.NoneType):
            others.append(each)
    found = list[JSON]()
    for each in schemas:
        found += each["anyOf"] if "discriminator" in each else [each]
    return zip((*others, *structs), found, strict=False)


def plain_schema(schema: dict[str, JSON]) -> dict[str, JSON]:
    """The schema without titles, with all definitions at its root, and those used once in their
    place.

    >>> plain_schema({"type": "object", "title": "T", "properties": {"title": {"type": "string"}}})
    {'type': 'object', 'properties': {'title': {'type': 'string'}}}
    """
    raw: dict[str, JSON] = {}
    definitions: dict[str, JSON] = {}
    uses: Counter[str] = Counter()

    def walk(value: JSON, scope: dict[str, str], names: bool = False) -> JSON:
        if isinstance(value, list):
            return [walk(each, scope) for each in value]
        if not isinstance(value, dict):
            return value
        if names:  # of properties, not keywords
            return {name: walk(each, scope) for name, each in value.items()}
        own = {**value.get("$defs", {}), **value.get("definitions", {})}
        if own:
            scope = dict(scope)
            for name, each in own.items():  # two may have one name, in different places
                unique = name
                while raw.setdefault(unique, each) != each:
                    unique += "_"
                scope[name] = unique
            for name, each in own.items():
                if scope[name] not in definitions:
                    definitions[scope[name]] = True  # before what it holds, which may be itself
                    definitions[scope[name]] = walk(each, scope)
        found: dict[str, JSON] = {}
        for name, each in value.items():
            if name in ("$defs", "definitions") or (name == "title" and isinstance(each, str)):
                continue
            if name == "$ref" and isinstance(each, str) and each.startswith("#/"):
                local = each.rpartition("/")[2]
                uses[scope.get(local, local)] += 1
                each = f"#/$defs/{scope.get(local, local)}"
            elif name not in ("default", "enum", "const", "examples"):
                each = walk(each, scope, name in ("properties", "patternProperties"))
            found[name] = each
        return found

    def inline(value: JSON, within: frozenset[str] = frozenset()) -> JSON:
        if isinstance(value, list):
            return [inline(each, within) for each in value]
        if not isinstance(value, dict):
            return value
        name = str(value.get("$ref", "")).rpartition("/")[2]
        rest = {
            key: inline(each, within)
            for key, each in value.items()
            if key != "$ref" or name not in definitions
        }
        if name in definitions and uses[name] == 1 and name not in within:
            return {**inline(definitions[name], within | {name}), **rest}
        if name in definitions:
            kept.add(name)
            rest = {"$ref": value["$ref"], **rest}
        return rest

    kept: set[str] = set()
    done: dict[str, JSON] = {}
    root = inline(walk(schema, {}))
    while left := kept - done.keys():
        done.update({name: inline(definitions[name], frozenset((name,))) for name in sorted(left)})
    return {**root, "$defs": done} if done else root


def _adapted_schema(kind: type) -> dict[str, JSON]:
    schema: dict[str, JSON] = cast("type[_Adapted]", kind).adapter.json_schema()
    return schema


def _adapted(kind: type, value: Any) -> Any:
    """A value that pydantic reads. Raises ValueError, in words without addresses."""
    try:
        return kind(cast("type[_Adapted]", kind).adapter.validate_python(value))
    except Exception as error:  # of its own, and of the user's validators
        if not hasattr(error, "errors"):
            raise ValueError(f"{type(error).__name__}: {error}") from None
        problems = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        words = "; ".join(f"{place}: {words}" if place else words for place, words in problems)
        raise ValueError(words) from None


def _converted(text: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The arguments that a model wrote, in the types of the parameters. Numbers in quotes, and an
    object in quotes, count as what they stand for, as small models write such. Raises ToolError."""
    name = struct.__name__.removesuffix(" arguments")
    try:
        value = json.loads(text) if text.strip() else {}
        if isinstance(value, str):
            value = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"The arguments of {name!r} are no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ToolError(f"The arguments of {name!r} must be a JSON object.")
    try:
        made = msgspec.convert(value, struct, strict=False, dec_hook=_adapted)
    except (ValueError, RecursionError) as error:  # of msgspec, and of pydantic
        raise ToolError(f"The arguments of {name!r} do not fit its parameters: {error}") from None
    values = msgspec.structs.asdict(made).items()
    return {name: each.value if isinstance(each, _Adapted) else each for name, each in values}


class OutputType:
    """A type for answers: the format to ask for, and the value of an answer.

    >>> OutputType(list[int]).value('{"value": [1, 2]}')
    [1, 2]
    """

    def __init__(self, kind: Any) -> None:
        self._wrapped = _struct("answer", {"value": (kind, msgspec.NODEFAULT)}, {})
        schema = _schema(self._wrapped)
        inner = schema["properties"]["value"]
        if "$ref" in inner:
            inner = schema["$defs"][inner["$ref"].rpartition("/")[2]]
        self._bare = "properties" in inner  # an object needs none around it
        if self._bare:
            schema = {**inner, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
        name = re.sub(r"[^A-Za-z0-9_-]", "_", getattr(kind, "__name__", "answer"))[:64]
        self.format = JSONSchema(name, schema)

    def value(self, text: str) -> Any:
        """What an answer stands for. Raises ToolError, in words for the model."""
        opened = _OPENED.search(text)
        if opened and (closed := _CLOSED.search(text, opened.end() - 1)):
            text = text[opened.end() : closed.start()]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ToolError(f"The answer is no JSON: {error}.") from None
        # As it was asked for, or else with the object that we put around it, or without.
        asked, other = value, {"value": value}
        if self._bare or not isinstance(value, dict) or "value" not in value:
            asked, other = other, asked
        problem: Exception = ValueError()
        for given in (asked, other):
            try:
                made: Any = msgspec.convert(given, self._wrapped, strict=False, dec_hook=_adapted)
            except (ValueError, RecursionError) as error:
                problem = error if given is asked else problem
            else:
                return made.value.value if isinstance(made.value, _Adapted) else made.value
        raise ToolError(f"The answer does not fit its schema: {problem}.")


_OPENED, _CLOSED = re.compile(r"```(?:json)?[ \t\r]*+\n"), re.compile(r"\n[ \t]*+```")
"""The lines around an answer that is fenced."""

# ---- what a function gives -------------------------------------------------------------------


def _called(function: Callable[..., Any], values: dict[str, Any], most: int) -> Any:
    """A function's result for the model, or what must be awaited for it."""
    result = function(**values)
    if inspect.isgenerator(result):
        result = _listed(result, most)
        if all(isinstance(each, str) for each in result):
            return "".join(result)
    return result if isinstance(result, Awaitable) else _output(result)


def _output(value: Any) -> Output:
    """A function's result for the model: text and parts as they are, the rest as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes() | bytearray():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise ToolError(f"It gave {len(value)} bytes, which are no text.") from None
        case Message():
            return value.parts
        case list() | tuple() if any(isinstance(each, _PARTS) for each in value):
            return tuple(each if isinstance(each, _PARTS) else Text(str(each)) for each in value)
        case _ if isinstance(value, _PARTS):
            return (value,)
    try:
        return msgspec.json.encode(value, enc_hook=_encode).decode()
    except UnicodeEncodeError:  # names of files may have half of a surrogate pair
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode)
        return json.dumps(plain, ensure_ascii=False)


def _encode(value: Any) -> Any:
    """JSON for what msgspec cannot encode: a pydantic model, a collection, or its text."""
    match value:
        case Mapping():
            return dict(value)
        case tuple() | frozenset():  # of these only the names in a dict come here
            return str(value)
        case Iterator() | Sequence() | Set() | ValuesView():
            return _listed(value, LONGEST)
    if hasattr(value, "tolist"):  # of numpy
        return value.tolist()
    return _dumped(value) if hasattr(value, "model_dump") else str(value)


def _listed(values: Iterable[Any], most: int) -> list[Any]:
    """So many of these values as `most` characters may show: they may be without an end."""
    found: list[Any] = []
    for each in values:
        found.append(each)
        most -= max(len(each), 1) if isinstance(each, str) else 1
        if most < 0:
            break
    return found


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json")


_T = TypeVar("_T")

MOST_THREADS = 256
"""Threads in which functions are called, including those of cancelled calls."""
_threads = Threads("dragoman-tool")


async def in_thread(function: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own. Raises ToolError where `MOST_THREADS` are at work, or
    hang."""
    try:
        return await _threads.run(function, MOST_THREADS)
    except BusyError:
        raise ToolError(f"{MOST_THREADS} calls are at work, or hang. Try again later.") from None
