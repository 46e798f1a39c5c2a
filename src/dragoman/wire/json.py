"""Reads and writes JSON: bodies, typed objects, limits, and errors that name the field."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress, repeat
from operator import is_not
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import fields as struct_fields

from dragoman.core.error import FaultError, bad_request, quoted
from dragoman.core.item import JSON

from .pieces import in_pieces

MAX_DEPTH = 256
MAX_ANSWER = 64 * 1024 * 1024
"""The largest answer that is read as one JSON value, in bytes."""

FAR = 1e15
"""Beyond this a float is no count, and JSON can contain `1e999`, which is infinite."""
_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)
_decode = msgspec.json.Decoder().decode
decode_string = msgspec.json.Decoder(str).decode
"""The text of one JSON string. Raises BROKEN for anything else."""
raw_fields = msgspec.json.Decoder(dict[str, Raw]).decode
"""The fields of one JSON object, undecoded. Raises BROKEN for anything else."""
raw_list = msgspec.json.Decoder(list[Raw]).decode
_decode_array = msgspec.json.Decoder(list[str]).decode
BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec's decoders; the last for nesting that is too deep, even to skip."""
ABSENT = Raw()
"""The default of a Raw field, to be compared by identity."""
_encoder = msgspec.json.Encoder()
encode, encode_lines = _encoder.encode, _encoder.encode_lines
"""Like `dump`, and raises UnicodeEncodeError for a lone surrogate."""
LARGE = 1 << 20
"""Bytes of JSON from which decoders must not hold the GIL for long."""
_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"


class Limits(Struct, frozen=True, kw_only=True):
    """Limits for the body of a request. A body over a limit is refused before
    it is decoded."""

    max_json_values: Annotated[
        int, Meta(description="Maximum number of JSON values and names in a request body.", ge=1)
    ] = 310_000  # an embeddings request has up to 300,000 tokens, in 2,048 inputs (OpenAI)
    max_items: Annotated[
        int, Meta(description="Maximum number of messages or input items in a request.", ge=1)
    ] = 10_000
    max_parts: Annotated[
        int, Meta(description="Maximum number of content parts of one message or item.", ge=1)
    ] = 4_096
    max_tools: Annotated[int, Meta(description="Maximum number of tools in a request.", ge=1)] = (
        1_024
    )
    max_stop: Annotated[
        int, Meta(description="Maximum number of stop strings in a request.", ge=1)
    ] = 128
    max_logit_bias: Annotated[
        int, Meta(description="Maximum number of tokens in logit_bias.", ge=1)
    ] = 300_000
    max_choices: Annotated[
        int, Meta(description="Maximum number of choices that n may ask for.", ge=1, le=128)
    ] = 128
    max_inputs: Annotated[
        int,
        Meta(
            description="Maximum number of inputs of an embeddings request, or prompts of a "
            "completion.",
            ge=1,
        ),
    ] = 2_048
    max_metadata: Annotated[
        int, Meta(description="Maximum number of metadata entries of a request.", ge=1)
    ] = 64
    max_metadata_bytes: Annotated[
        int,
        Meta(
            description="Bytes that the metadata of a request, or of a conversation, may have as "
            "JSON: OpenAI's limits for names and texts add up to 36 KiB.",
            ge=1,
        ),
    ] = 64 * 1024


LIMITS = Limits()
MAX_UNKNOWN = 10_000
"""The most unknown fields of one object: each is carried, and reported where it is dropped."""


def too_many(path: str, most: int, setting: str) -> FaultError:
    """The error for a field with more members than a setting allows."""
    return FaultError(bad_request(f"has more than {most} members ({setting})", path))


UNMARKED = bytes({*range(256)} - {*b",:[{"})
"""All bytes except commas, colons and opening brackets: with these deleted, the length of JSON is
an upper bound of its values and names, as texts may have such marks, too."""


def marks(data: bytes) -> int:
    """An upper bound of the number of values and names in JSON.

    >>> marks(b'{"a": [1, 2], "b": ","}')
    7
    """
    return len(data.translate(None, UNMARKED))


MAX_ESCAPES = 4_000_000
"""The most backslashes in a body: each costs as much as many letters."""
LONG, MAX_DIGITS = 1 << 18, 100
"""The most digits of a number in JSON of so many bytes: many such numbers take quadratic time."""
_MANY = b"0" * (MAX_DIGITS + 1)
_AS_ZEROS = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_SLICE = 1 << 18
VALUE = 80
"""Bytes of a decoded value, about, at the most: an empty array has 80, a short text 72, an
object with one field 208 for its three marks."""


def check_size(data: bytes, limits: Limits, found: int | None = None) -> int:
    """Count the values and names, which `marks` has `found` so many of. Raises FaultError, which
    names the field, where there are too many. It counts exactly only where that may be too high,
    and in slices, so that other threads can run.
    """
    most = limits.max_json_values
    if has_long_number(data):
        raise FaultError(bad_request(f"The body has a number of more than {MAX_DIGITS} digits."))
    starts = range(0, len(data), LARGE)
    escapes = [data.count(b"\\", at, at + LARGE) for at in starts if len(data) > MAX_ESCAPES]
    if sum(escapes) > MAX_ESCAPES:
        raise FaultError(bad_request(f"The body has more than {MAX_ESCAPES} backslashes."))
    found = found or sum([marks(data[at : at + LARGE]) for at in starts])
    if found > most or found * VALUE > len(data):
        exact = 0
        for number, (within, texts) in enumerate(split_at_quotes(data), 1):
            exact += marks(b"".join(texts[within::2]))
            if found <= most and 2 * exact * len(data) > found * number * _SLICE:
                return found  # few of its marks are in texts
        found = exact
    if found <= most:
        return found
    found = depth = 0
    name = last = b""
    slices = split_at_quotes(data)
    while found <= most:
        within, texts = next(slices)
        for place, text in enumerate(texts, within):
            if place % 2:
                last = last[:64] + text if place == within else text  # cut in two, or complete
                continue
            if depth == 1 and text.lstrip()[:1] == b":":
                name = last
            opened = text.count(b"[") + text.count(b"{")
            depth += opened - text.count(b"]") - text.count(b"}")
            found += opened + text.count(b",") + text.count(b":")
            if found > most:
                break
    param = name[:64].decode(errors="replace") or None
    problem = f"has more than {most} JSON values and names (max_json_values)"
    raise FaultError(bad_request(problem if param else f"The body {problem}", param))


def has_long_number(data: bytes) -> bool:
    """Whether JSON of more than LONG bytes has a number of more than MAX_DIGITS digits. It looks
    at slices, so that other threads can run."""
    slices = range(0, len(data) if len(data) > LONG else 0, LARGE)
    if not any(_MANY in data[at : at + LARGE].translate(_AS_ZEROS) for at in slices):
        return False
    parts = (each for within, texts in split_at_quotes(data) for each in texts[within::2])
    return any(_MANY in each.translate(_AS_ZEROS) for each in parts)  # or it is in a text


def split_at_quotes(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Slices of JSON, split at their quotes: the parts between strings and in them, alternating;
    the first is in a string where the number is 1."""
    within, rest = 0, b""
    for start in range(0, len(data), _SLICE):
        piece = rest + data[start : start + _SLICE]
        half = len(piece) - (len(piece) - len(piece.rstrip(b"\\"))) % 2  # of an escape, at its end
        piece, rest = piece[:half], piece[half:]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        yield within, (texts := piece.split(b'"'))
        within = (within + len(texts) - 1) % 2


def load(body: bytes | str, decode: Callable[[bytes], JSON] = _decode) -> JSON:
    """Decode JSON. Lone surrogates are allowed: the other half may come with the next chunk.
    Raises ValueError with a message that has the problem and its place."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if len(data) > LONG and has_long_number(data):
        raise ValueError(f"has a number of more than {MAX_DIGITS} digits")
    try:
        value = decode(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        value = _load_slowly(data, str(error), decode)
    if len(data) > 2 * MAX_DEPTH:  # a level takes two brackets
        check_depth(value)
    return value


def _load_slowly(data: bytes, problem: str, decode: Callable[[bytes], JSON]) -> JSON:
    """Decode with the stdlib decoder, which accepts lone surrogates, as some servers stream. As it
    is slow and blocks, they are replaced in large texts."""
    try:
        if len(data) > LARGE:
            with suppress(*BROKEN):
                return decode(_ESCAPE.sub(_mended, data))
            raise ValueError(problem)
        return json.loads(data.decode("utf-8", "strict"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from None
    except ValueError:
        problem = problem if data.strip() else "there is nothing in it"
        raise ValueError(f"is not valid JSON: {problem}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F]..|\\.",
    re.DOTALL,
)


def _mended(escape: re.Match[bytes]) -> bytes:
    """An escape, or U+FFFD for half of a surrogate pair."""
    return rb"\ufffd" if len(escape[0]) == 6 else escape[0]


def _refuse_constant(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON")


def check_depth(value: JSON) -> None:
    """Raise ValueError where arrays and objects are nested deeper than MAX_DEPTH.

    msgspec stops only at the limit of the C stack: 1,000 levels on Python 3.11, 10,000 on 3.12.
    The decoded value is walked level by level, not the text: the collector tracks every container
    that holds a container, so it finds them without a step of Python for each value.
    """
    level = [value]
    for _ in range(MAX_DEPTH - 1):
        level = list(filter(gc.is_tracked, gc.get_referents(*level)))
        if not level:
            return
    # The collector need not track an object without containers; the last level may be one.
    if any(isinstance(inner, dict | list) for inner in gc.get_referents(*level)):
        raise ValueError(_TOO_DEEP)


def check_metadata(metadata: Mapping[str, JSON], limits: Limits) -> None:
    """Raise FaultError where metadata has too many entries, or bytes."""
    if len(metadata) > limits.max_metadata:
        raise too_many("metadata", limits.max_metadata, "max_metadata")
    if len(dump(metadata)) > (most := limits.max_metadata_bytes):
        problem = f"is more than {most} bytes (max_metadata_bytes)"
        raise FaultError(bad_request(problem, "metadata"))


def value_of(raw: Raw) -> JSON:
    """The value of a Raw field; None where it is absent."""
    return None if raw is ABSENT else load(bytes(raw))


def string(data: bytes) -> str | None:
    """The text of one JSON string; None where the bytes are anything else, or a lone surrogate.

    >>> string(b'"caf\\\\u00e9"'), string(b'"a", "b"'), string(b"1")
    ('café', None, None)
    """
    try:
        return decode_string(data)
    except BROKEN:
        return None


def decode_strings(each: Sequence[bytes]) -> list[str]:
    """The texts of JSON strings, up to the first that is none, or has a line end beside it.

    >>> decode_strings([b'"a"', b'"b"', b'"c", "d"']), decode_strings([b'"a"', b'"b"\\n'])
    (['a', 'b'], ['a'])
    """
    # No string has a line end in it, and no two values stand together without a comma: the count
    # is right only if each is one string.
    joined = b",\n".join(each)
    try:
        strings = _decode_array(b"[" + joined + b"]")
        if len(strings) == len(each) > joined.count(b"\n") and b"\r" not in joined:
            return strings
    except BROKEN:
        pass
    texts = [None if b"\n" in one or b"\r" in one else string(one) for one in each]
    good = texts.index(None) if None in texts else len(texts)
    return cast(list[str], texts[:good])


def dump(value: JSON) -> bytes:
    """Encode as compact JSON, keys in the order they have.

    A lone surrogate becomes U+FFFD.
    """
    try:
        return encode(value)
    except (TypeError, UnicodeEncodeError):
        return in_pieces(value, b"", value_of)


def dump_all(values: Sequence[JSON]) -> bytes:
    """Several values, one on each line: cheaper than one by one.

    >>> dump_all(["a", "b\\n"])
    b'"a"\\n"b\\\\n"'
    """
    try:
        return encode_lines(values)[:-1]
    except (TypeError, UnicodeEncodeError):
        return b"\n".join(map(dump, values))


def text(value: JSON) -> str:
    """The same as text."""
    return dump(value).decode()


def dense(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Only the fields that were set.

    >>> dense({"id": None, "role": "user", "n": 0})
    {'role': 'user', 'n': 0}
    """
    return dict(compress(fields.items(), map(is_not, fields.values(), repeat(None))))


def merge(fields: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """The fields, with what `more` has besides, object by object; a null counts as absent.

    >>> merge({"id": "1", "a": {"b": 1}, "c": None}, {"id": "2", "a": {"d": 2}, "c": 3})
    {'id': '1', 'a': {'b': 1, 'd': 2}, 'c': 3}
    """
    for name, value in more.items():
        have = fields.get(name)
        if isinstance(have, dict) and isinstance(value, dict):
            fields[name] = merge(dict(have), value)
        elif have is None:
            fields[name] = value
    return fields


def parse(body: bytes) -> Fields:
    """The fields of a request's body. Raises FaultError naming what is wrong with it."""
    try:
        value = load(body)
    except ValueError as error:
        raise FaultError(bad_request(f"The body {error}.")) from None
    if not isinstance(value, dict):
        raise FaultError(bad_request(f"The body is {kind(value)}, and must be a JSON object."))
    return Fields(value)


def kind(value: JSON) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def whole(value: JSON) -> int | None:
    """A count, or a time in seconds, as a server gave it; None for what is none.

    >>> whole(7), whole(2.0), whole(True), whole(float("inf")), whole(-1)
    (7, 2, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < FAR else None


_WORDS = {"str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean"}
_WORDS |= {"array": "an array", "object": "an object", "null": "null"}
_MISSING = re.compile(r"Object missing required field `(.*)`")
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `(.*)`")
_OUT_OF_BOUNDS = re.compile(r"Expected `([^`]*)` (of length )?([<>]=) (.*)")


def invalid(
    error: msgspec.ValidationError, path: str, choices: Mapping[str, Sequence[str]] | None = None
) -> FaultError:
    """What msgspec found wrong with the object at a path, as an error that names the field.
    `choices` are the values of its fields that have only some."""
    problem, _, place = str(error).partition(" - at `$")
    name = place[1:-1]
    values = (choices or {}).get(name.partition("[")[0] if name.endswith("]") else name)
    # A value of an object of any keys is `[...]` to msgspec, which does not say which.
    path = (path + place.removesuffix("`")).removeprefix(".").replace("[...]", "")
    if found := _MISSING.fullmatch(problem):
        return FaultError(bad_request("is missing", f"{path}.{found[1]}".removeprefix(".")))
    if found := _WRONG_TYPE.fullmatch(problem):
        # Every number is an integer or a float to msgspec, and "number" to people.
        given = "a number" if found[2] in ("int", "float") else _WORDS.get(found[2], found[2])
        wanted = [_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null"]
        wanted = wanted if "a number" not in wanted else [w for w in wanted if w != "an integer"]
        mismatch = f"is {given}, and must be {' or '.join(dict.fromkeys(wanted))}"
        problem = "is missing" if found[2] == "null" else mismatch
    elif found := _OUT_OF_BOUNDS.fullmatch(problem):
        bound, most = "at least" if found[3] == ">=" else "at most", found[4].removesuffix(".0")
        unit = "entries" if found[1] == "array" else "characters"
        length = "is empty" if most == "1" else f"has more than {most} {unit}"
        problem = length if found[2] else f"must be {bound} {most}"
    elif pattern := problem.partition(" matching regex ")[2]:
        problem = f"must be of the form {pattern}"
    elif problem.startswith("Expected"):  # the field that tells the kinds of objects apart
        problem = "is missing or not a string"
    elif problem == "Number out of range":  # 1e999, which JSON has and no float holds
        problem = "is too large a number"
    else:
        given = problem.partition("value ")[2]
        allowed = f"and must be one of {', '.join(values)}" if values else "which is none it may be"
        problem = f"is {given}, {allowed}"
    return FaultError(bad_request(problem, path or None))


def choices(*kinds: type[Struct]) -> dict[str, list[str]]:
    """The values of fields that have only some, the one that tells the kinds apart among them."""
    found: dict[str, list[str]] = {}
    for kind in kinds:
        config = kind.__struct_config__
        if config.tag_field is not None:
            found.setdefault(config.tag_field, []).append(str(config.tag))
        for field in struct_fields(kind):
            for each in (field.type, *get_args(field.type)):
                if get_origin(each) is Literal:
                    found[field.name] = [*get_args(each)]
    return found


def mended(data: bytes, error: Exception, integers: Collection[str]) -> bytes:
    """A body that was not decoded, so that it can be: lone surrogates, which msgspec does not read,
    are replaced, and `4096.0` counts as an integer. Raises the error where there are none, and
    FaultError for what is no JSON, or nested too deeply."""
    fields = parse(data).rest()
    given = {name: fields.get(name) for name in integers}
    rounded = {n: int(v) for n, v in given.items() if isinstance(v, float) and v.is_integer()}
    if isinstance(error, FaultError) and not rounded:
        raise FaultError(error.fault)  # `error` is held by this frame, which it would hold
    return dump(fields | rounded)


class Reader(Generic[_S]):
    """Decodes JSON objects into a Struct, or one of several with tags, and unknown fields apart.

    An object without unknown fields, as most are, is decoded in one step of C.

    >>> class Point(Struct):
    ...     x: int
    >>> Reader(Point).read(b'{"x": 1}'), Reader(Point).read(b'{"x": 1, "y": 2, "z": null}')
    ((Point(x=1), {}), (Point(x=1), {'y': 2}))
    >>> Reader(Point).read(b'{"x": "1"}', "points[0]")
    Traceback (most recent call last):
        ...
    dragoman.core.error.FaultError: points[0].x: is a string, and must be an integer
    """

    def __init__(self, *kinds: type[_S], **inner: Any) -> None:
        """`inner` are types of Raw fields, made of the `strict` of other readers: where no object
        in them has unknown fields either, they are decoded in the same step."""
        each = [
            msgspec.defstruct(
                kind.__name__,
                [
                    (field.name, inner[field.name], msgspec.field(default=field.default))
                    for field in struct_fields(kind)
                    if field.name in inner
                ],
                bases=(kind,),
                forbid_unknown_fields=True,
                kw_only=True,
            )
            for kind in kinds
        ]
        strict: Any = Union[tuple(each)]  # noqa: UP007 - the kinds are known when this runs
        self.strict: Any = strict
        self.strict_list: Any = list[strict]
        self.decode: Callable[[bytes | Raw], Any] = msgspec.json.Decoder(strict).decode
        """Decodes an object without unknown fields. Raises ValidationError for any other."""
        self._decode_all = msgspec.json.Decoder(self.strict_list).decode
        self._tolerant = msgspec.json.Decoder(Union[kinds]).decode  # noqa: UP007
        self._known = {
            kind: {*kind.__struct_fields__, kind.__struct_config__.tag_field} for kind in kinds
        }
        self._choices = choices(*kinds)

    def read(self, data: bytes | Raw | _S, path: str = "") -> tuple[_S, dict[str, JSON]]:
        """The object and its unknown fields, nulls left out. Raises FaultError naming the field
        that is wrong, and BROKEN or ValueError for what is not JSON."""
        if isinstance(data, Struct):  # decoded with the object it is in
            return data, {}
        try:
            return self.decode(data), {}
        except msgspec.ValidationError:
            return self.read_loosely(data, path)

    def read_loosely(self, data: bytes | Raw, path: str = "") -> tuple[_S, dict[str, JSON]]:
        """The same of an object that `decode` did not take."""
        try:
            value = self._tolerant(data)
        except msgspec.ValidationError as error:
            raise invalid(error, path, self._choices) from None
        known = self._known[type(value)]
        fields = {n: raw for n, raw in raw_fields(data).items() if n not in known}
        if len(fields) > MAX_UNKNOWN:
            place = f"{path}: the object" if path else "The body"
            problem = f"{place} has more than {MAX_UNKNOWN} fields that are not known here"
            raise FaultError(bad_request(problem))
        return value, {n: v for n, raw in fields.items() if (v := value_of(raw)) is not None}

    def read_optional(self, data: Raw | _S | None, path: str) -> tuple[_S | None, dict[str, JSON]]:
        """The same of a field that may be absent or null."""
        if data is None or data is ABSENT or (isinstance(data, Raw) and bytes(data) == b"null"):
            return None, {}
        return self.read(data, path)

    def read_all(self, data: bytes | Raw, path: str) -> tuple[list[_S], dict[int, dict[str, JSON]]]:
        """The objects in an array; the unknown fields of those that have some by their place."""
        try:
            return self._decode_all(data), {}
        except msgspec.ValidationError:
            pass
        try:
            each = raw_list(data)
        except msgspec.ValidationError as error:
            raise invalid(error, path) from None
        both = [self.read(raw, f"{path}[{number}]") for number, raw in enumerate(each)]
        values = [value for value, _ in both]
        return values, {number: rest for number, (_, rest) in enumerate(both) if rest}


class Fields:
    """The fields of a JSON object, taken out one by one; null counts as absent.

    Each method raises FaultError naming the field's path when the value is not of its kind. What
    was not taken is `rest()`: the fields we do not know.

    >>> fields = Fields({"n": 2, "vendor": True}, "tools[0]")
    >>> fields.integer("n", 1, 128), fields.rest()
    (2, {'vendor': True})
    >>> Fields({"n": "2"}, "tools[0]").integer("n")
    Traceback (most recent call last):
        ...
    dragoman.core.error.FaultError: tools[0].n: is a string, and must be an integer
    """

    __slots__ = ("_left", "path")

    def __init__(self, value: dict[str, JSON], path: str = "") -> None:
        self._left = dict(value)
        self.path = path

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, problem: str) -> FaultError:
        """The error to raise for a field."""
        return FaultError(bad_request(problem, self.at(name)))

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def any(self, name: str) -> JSON:
        """A value of any kind."""
        return self._left.pop(name, None)

    def string(self, name: str) -> str | None:
        """A string."""
        return self._typed(name, str, "a string")

    def need(self, name: str) -> str:
        """A string that must be there and not be empty."""
        value = self.string(name)
        if not value:
            raise self.wrong(name, "is missing" if value is None else "is empty")
        return value

    def boolean(self, name: str) -> bool | None:
        """True or false."""
        return self._typed(name, bool, "a boolean")

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        """An integer within bounds, both included."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"is {kind(value)}, and must be an integer")
        self._bounds(name, value, low, high)
        return value

    def number(
        self, name: str, low: float | None = None, high: float | None = None
    ) -> float | None:
        """A number within bounds, both included."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"is {kind(value)}, and must be a number")
        self._bounds(name, value, low, high)
        return value

    def one_of(self, name: str, options: Collection[str]) -> str | None:
        """One of these words."""
        value = self.string(name)
        if value is not None and value not in options:
            known = ", ".join(sorted(filter(None, options)))  # "" stands for no value
            raise self.wrong(name, f"is {quoted(value)}, and must be one of {known}")
        return value

    def object(self, name: str) -> Fields | None:
        """An object, as fields of its own."""
        value = self._typed(name, dict, "an object")
        return None if value is None else Fields(value, self.at(name))

    def mapping(self, name: str) -> dict[str, JSON] | None:
        """An object, as it is."""
        return self._typed(name, dict, "an object")

    def array(self, name: str) -> list[JSON] | None:
        """An array, as it is."""
        return self._typed(name, list, "an array")

    def objects(self, name: str) -> Iterator[Fields]:
        """An array of objects, each as fields of its own; none when absent."""
        for number, value in enumerate(self.array(name) or ()):
            path = f"{self.at(name)}[{number}]"
            if not isinstance(value, dict):
                raise FaultError(bad_request(f"is {kind(value)}, and must be an object", path))
            yield Fields(value, path)

    def strings(self, name: str) -> tuple[str, ...] | None:
        """An array of strings."""
        values = self.array(name)
        if values is None:
            return None
        for number, value in enumerate(values):
            if not isinstance(value, str):
                raise self.wrong(f"{name}[{number}]", f"is {kind(value)}, and must be a string")
        return tuple(values)

    def rest(self) -> dict[str, JSON]:
        """The fields that were not taken, nulls left out."""
        return {name: value for name, value in self._left.items() if value is not None}

    def left(self) -> dict[str, JSON]:
        """The fields that were not taken, nulls included."""
        return dict(self._left)

    def _typed(self, name: str, wanted: type[_T], word: str) -> _T | None:
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, wanted):
            raise self.wrong(name, f"is {kind(value)}, and must be {word}")
        return value

    def _bounds(self, name: str, value: float, low: float | None, high: float | None) -> None:
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = (
                f"at least {low}"
                if high is None
                else f"at most {high}"
                if low is None
                else f"between {low} and {high}"
            )
            raise self.wrong(name, f"is {value}, and must be {bounds}")
