"""Reads `dragoman.toml`."""

from __future__ import annotations

import builtins
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, hint
from dragoman.core.interfaces import Secret
from dragoman.engines.find_format import NAMES, is_format
from dragoman.engines.profiles import AUTO, unknown_kind
from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import parse_url
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.json import Fields
from dragoman.wire.registry import WIRES

from .settings import Settings, about

FILE = "dragoman.toml"
LONGEST = 1_000_000
"""Characters of a configuration."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_CREDENTIALS = re.compile(r"(?<=://)\S*@")
"""User and password in a URL."""
_T = TypeVar("_T", bound=Struct)


class Upstream(Struct, frozen=True, kw_only=True):
    """A server that serves models."""

    name: Annotated[str, about("The name of this upstream in messages.")]
    url: Annotated[str, about("Its base URL, as its own clients use it.")]
    key_env: Annotated[str | None, about("The environment variable that holds our key to it.")] = (
        None
    )
    wire: Annotated[
        str, about(f"The protocol to call it with: {', '.join(WIRES)}, or auto to detect it.")
    ] = AUTO
    format: Annotated[
        str | None,
        about(
            "The token format of its models, for the completions protocol: conversations are "
            "rendered as prompts in it. A name, or a model's folder with a chat template."
        ),
    ] = None
    date: Annotated[
        str | None,
        about("The date that prompts in a format say: 2026-11-23, none, or today (the default)."),
    ] = None
    profile: Annotated[str | None, about("The kind of server; detected by default.")] = None
    models: Annotated[
        tuple[str, ...], about("The models to request from it; empty sends every name to it.")
    ] = ()
    aliases: Annotated[
        dict[str, str], about("Names that clients may use, each with the model it stands for.")
    ] = {}
    pass_client_key: Annotated[
        bool, about("Whether the client's own key is sent to it in place of ours.")
    ] = False
    realtime: Annotated[
        Literal["", "ga", "beta"],
        about(
            "The dialect of Realtime that it speaks, ga or beta: sessions with its models are then "
            "relayed to it. Unset, they are made here, of single answers."
        ),
    ] = ""
    retries: Annotated[
        int,
        about(
            "How often a 429, 503 or 529 is retried, as its Retry-After says, before it is passed"
            " on; 0 passes it on at once.",
            ge=0,
            le=10,
        ),
    ] = 0


EVENTS = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")
"""The events that a webhook can receive."""


class Webhook(Struct, frozen=True, kw_only=True):
    """A server that is notified when a background response has ended."""

    url: Annotated[str, about("The URL to send messages to.")]
    secret_env: Annotated[
        str,
        about(
            "The environment variable that holds the secret for signing messages: whsec_ and then "
            "base64."
        ),
    ]
    events: Annotated[tuple[str, ...], about(f"The events to send: {', '.join(EVENTS)}.")] = EVENTS
    allow: Annotated[
        tuple[str, ...],
        about(
            "Addresses and networks that are allowed though not public, such as 127.0.0.1 or "
            "10.0.0.0/8."
        ),
    ] = ()


class HostedTool(Struct, frozen=True, kw_only=True):
    """A tool that the server runs for any model, where a request names it."""

    use: Annotated[
        str,
        about(
            "The tool: web=searxng:URL, web=brave, web=tavily, web=exa, python, python=bubblewrap, "
            "files, mcp:NAME=URL, mcp:NAME=stdio:COMMAND, or mcp for servers that requests name."
        ),
    ]
    allow: Annotated[
        tuple[str, ...],
        about("web, mcp: addresses and networks that may be called though they are not public."),
    ] = ()
    hosts: Annotated[
        tuple[str, ...], about("mcp: the hosts at which requests may name servers themselves.")
    ] = ()
    headers: Annotated[
        dict[str, str],
        about("mcp: headers for the server, each with the environment variable of its value."),
    ] = {}
    environment: Annotated[
        tuple[str, ...], about("mcp: environment variables that a COMMAND is given.")
    ] = ()
    approval: Annotated[
        Literal["always", "never"] | None,
        about("mcp: whether calls need consent, where a request does not say; always by default."),
    ] = None
    allowed_tools: Annotated[
        tuple[str, ...], about("mcp: the tools of the server that can be used; empty is all.")
    ] = ()
    seconds: Annotated[
        float | None, about("mcp, python: how long a call may take, in seconds.", ge=1, le=3600)
    ] = None
    memory: Annotated[
        int | None,
        about("python: the memory that a container may have, in bytes.", ge=16 * 2**20, le=2**40),
    ] = None


class Configuration(Struct, frozen=True, kw_only=True):
    """The content of the file; `port_given` is whether it sets the port, even to the default."""

    server: Settings = Settings()
    port_given: bool = False
    upstreams: tuple[Upstream, ...] = ()
    webhooks: tuple[Webhook, ...] = ()
    tools: tuple[HostedTool, ...] = ()


_TABLES = (
    *(("[[tools]]", HostedTool), ("[[webhooks]]", Webhook)),
    *(("[server]", Settings), ("[[upstreams]]", Upstream)),
)
_HOMES = {name: home for home, kind in _TABLES for name in kind.__struct_fields__ if name != "keys"}
"""The line of each setting in the file."""
_KEYS = ("key", "api_key", "token", "secret")
"""The name of a field for a literal key, which files must not have."""


class ConfigurationError(ValueError):
    """The configuration is invalid; the message has the place and the reason."""


@contextmanager
def explained(about: str = "", end: str = "") -> Iterator[None]:
    """Turns errors about names and missing packages into ConfigurationError."""
    try:
        yield
    except (ValueError, ImportError) as error:
        end = "" if isinstance(error, ImportError) else end
        raise ConfigurationError(without_credentials(f"{about}{error}{end}")) from None


def without_credentials(text: str) -> str:
    """A text without user and password of the URLs in it.

    >>> without_credentials("'http://ada:secret@h:bad' cannot be used")
    "'http://h:bad' cannot be used"
    """
    return _CREDENTIALS.sub("", text)


def load(path: Path) -> Configuration:
    """Read a file. Raises ConfigurationError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8 text.") from None
    if len(text) > LONGEST:
        problem = f"has more than {LONGEST} characters, and is no configuration"
        raise ConfigurationError(f"{path} {problem}.")
    return read(text, str(path))


def read(text: str, name: str = FILE) -> Configuration:
    """Read the text of a file called `name`.

    >>> read("[server]\\nport = 9000").server.port
    9000
    >>> try:
    ...     read("[server]\\nport = 'x'")
    ... except ConfigurationError as error:
    ...     print(error)
    dragoman.toml:2: server.port: is a string, and must be an integer
    """
    try:
        document = tomllib.loads(text)
        fields = Fields(document)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        found = re.search(r"\(at line (\d+)", problem)
        line = int(found[1]) if found else len(text.splitlines())  # or at the end of the document
        raise ConfigurationError(f"{name}:{line}: {problem}") from None
    except RecursionError:
        raise ConfigurationError(f"{name} is nested too deeply to be read.") from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise ConfigurationError(f"{name} has a number that is too long to be read.") from None
    try:
        for table in ("upstreams", "webhooks", "tools"):
            if isinstance(document.get(table), dict):
                problem = f"is one table, and must be a list of them: [[{table}]]"
                raise fields.wrong(table, problem)
        server = fields.object("server")
        port_given = server is not None and "port" in server.rest()
        settings = _filled(Settings, server) if server else Settings()
        upstreams = tuple(map(_upstream, fields.objects("upstreams")))
        webhooks = tuple(map(_webhook, fields.objects("webhooks")))
        tools = tuple(_filled(HostedTool, each) for each in fields.objects("tools"))
        _nothing_left(fields, ("server", "upstreams", "webhooks", "tools"))
        if shared := clash(upstreams):
            number, field, problem = shared
            raise FaultError(bad_request(problem, f"upstreams[{number}].{field}"))
        urls = [webhook.url for webhook in webhooks]
        for number, url in enumerate(urls):
            if url in urls[:number]:  # the outbox finds its receiver by the address
                problem = f"is {place_of(url)!r}, as that of another: name all events in one table"
                raise FaultError(bad_request(problem, f"webhooks[{number}].url"))
    except FaultError as error:
        line = _line_of(error.fault.param or "", text)
        raise ConfigurationError(f"{name}:{line}: {error.fault.message}") from None
    return Configuration(
        server=settings,
        port_given=port_given,
        upstreams=upstreams,
        webhooks=webhooks,
        tools=tools,
    )


def with_keys(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings with the keys that the named variables hold, which they may have already.
    Raises ConfigurationError."""
    what = "a key for clients (api_key_env)"
    keys: list[Secret] = []
    names: dict[str, str] = {}  # by their keys
    for name in settings.api_key_env:
        keys.append(key := read_key(environ, name, what))
        if (other := names.setdefault(key.reveal(), name)) != name:
            problem = f"The variables {other} and {name} hold the same key: their clients"
            raise ConfigurationError(
                f"{problem} would be one. Name only one of them (api_key_env)."
            )
    had = settings.keys[-len(keys) :] if keys else ()
    if [key.reveal() for key in had] == [key.reveal() for key in keys]:
        return settings
    return msgspec.structs.replace(settings, keys=(*settings.keys, *keys))


def read_key(environ: Mapping[str, str], name: str, what: str) -> Secret:
    """The key in a variable. Raises ConfigurationError where there is none, or one that is invalid
    in a header."""
    check_name(environ, name, what)
    value = environ.get(name, "").strip()
    if not value:
        problem = f"The environment variable {name} should hold {what}, and is empty."
        raise ConfigurationError(problem)
    if not (value.isascii() and value.isprintable()):
        problem = f"The key in the environment variable {name} may have printable ASCII only."
        raise ConfigurationError(problem)
    return Secret(value)


def check_name(environ: Mapping[str, str], name: str, what: str) -> None:
    """Raise ConfigurationError for what does not name a variable: it may be the key itself, and is
    not shown."""
    if not environ.get(name) and not _VARIABLE.fullmatch(name):
        problem = f"The variable with {what} is to be given by its NAME, such as API_KEY"
        raise ConfigurationError(f"{problem}; what was given is no name, and is not shown here.")


def clash(upstreams: Sequence[Upstream]) -> tuple[int, str, str] | None:
    """The first upstream with a duplicate name: its place, the field, and the problem."""
    named: set[str] = set()
    owners: dict[str, str] = {}
    for place, upstream in enumerate(upstreams):
        if upstream.name in named:
            return place, "name", f"is {upstream.name!r}, as that of another upstream"
        named.add(upstream.name)
        for name, model in upstream.aliases.items():
            if not name:
                return place, "aliases", "has a name that is empty"
            if model in upstream.aliases:
                problem = f"has {name!r} stand for {model!r}, which is an alias itself"
                return place, "aliases", problem
        for field in ("models", "aliases"):
            for model in getattr(upstream, field):
                if (owner := owners.setdefault(model, upstream.name)) != upstream.name:
                    problem = f"has {model!r}, which {owner} has too and would answer alone"
                    return place, field, problem
    return None


def place_of(url: str) -> str:
    """An address for people to read: without user and password.

    >>> place_of("http://ada:secret@127.0.0.1:8080/v1")
    'http://127.0.0.1:8080/v1'
    """
    try:
        return str(parse_url(url))
    except InvalidUrlError:
        return url if "@" not in url else "an upstream"


def problem_of(upstream: Upstream) -> tuple[str, str] | None:
    """The invalid field of an upstream, and the reason."""
    if unknown := unknown_kind(upstream.wire, upstream.profile):
        return unknown
    format, formats = upstream.format, ", ".join(sorted(NAMES))
    if upstream.wire != COMPLETIONS.name:
        problem = f'is for an upstream with the wire "{COMPLETIONS.name}"'
        return None if format is None else ("format", problem)
    if format is None:
        problem = f"is missing: over completions a model is spoken to in one of {formats}"
        return "format", problem
    problem = f"is {format!r}, and must be a model's folder or one of {formats}"
    problem += hint(format, NAMES)
    return None if is_format(format) else ("format", problem)


# ---- values ------------------------------------------------------------------------------


def _upstream(fields: Fields) -> Upstream:
    upstream = _filled(Upstream, fields)
    try:
        parse_url(upstream.url)
    except InvalidUrlError as error:
        raise fields.wrong("url", str(error)) from None
    if problem := problem_of(upstream):
        raise fields.wrong(*problem)
    return upstream


def _webhook(fields: Fields) -> Webhook:
    webhook = _filled(Webhook, fields)
    for event in webhook.events:
        if event not in EVENTS:
            raise fields.wrong("events", f"has {event!r}; there is {', '.join(EVENTS)}")
    for network in webhook.allow:
        try:
            ip_network(network, strict=False)
        except ValueError:
            problem = f"has {network!r}, which is neither an address nor a network"
            raise fields.wrong("allow", problem) from None
    return webhook


def _filled(kind: type[_T], fields: Fields) -> _T:
    """A struct of this kind out of the fields of its name. Raises FaultError for any other."""
    hints = get_type_hints(kind, include_extras=True)
    hints = {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}
    values = {name: _taken(fields, name, *get_args(hint)) for name, hint in hints.items()}
    values = {name: value for name, value in values.items() if value is not None}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            raise fields.wrong(field.name, "is missing")
    _nothing_left(fields, hints)
    return kind(**values)


def _taken(fields: Fields, name: str, hint: Any, meta: Any) -> Any:
    """The value of one field, as its type hint and its bounds would have it; None if absent."""
    if get_origin(hint) in (UnionType, Union):  # the latter of a Literal
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    match get_origin(hint) or hint:
        case builtins.bool:
            return fields.boolean(name)
        case builtins.int:
            return fields.integer(name, meta.ge, meta.le)
        case builtins.float:
            value = fields.number(name, meta.ge, meta.le)
            if value is not None and math.isnan(value):  # TOML has nan, which no bound excludes
                raise fields.wrong(name, "is nan, and must be a number")
            return value
        case builtins.str:
            return fields.string(name)
        case builtins.tuple:
            return fields.strings(name)
        case builtins.dict:
            inner = fields.object(name)
            return inner and {key: inner.need(key) for key in inner.rest()}
        case _:
            return fields.one_of(name, get_args(hint))


def _nothing_left(fields: Fields, names: Iterable[str]) -> None:
    for unknown in fields.rest():
        if unknown == "api_key_env" and "key_env" in names:
            problem = "is for the clients' keys, under [server]; here key_env names the variable"
            raise fields.wrong(unknown, problem)
        if unknown in _HOMES:
            raise fields.wrong(unknown, f"belongs under {_HOMES[unknown]}")
        if unknown in _KEYS and "key_env" in names:
            problem = "is not a setting: keys are in environment variables, which key_env names"
            raise fields.wrong(unknown, problem)
        raise fields.wrong(unknown, f"is not a setting{hint(unknown, names)}")


# ---- lines -------------------------------------------------------------------------------

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=""")


def _line_of(path: str, text: str) -> int:
    """The line a field stands on, or else that of the nearest thing around it; TOML that is
    well-formed is assumed."""
    places: dict[str, int] = {}  # the path of every table and key
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            name = header[2]
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
            first, dot, rest = name.partition(".")
            table = f"{first}[{counts[first]}]{dot}{rest}" if first in counts else name
            places.setdefault(table, number)
        elif key := _KEY.match(line):
            places.setdefault(f"{table}.{key[1]}".removeprefix("."), number)
    if f"{path}[0]" in places:  # a name that is no list's, written as one
        path = f"{path}[0]"
    while path and path not in places:
        path = re.sub(r"(^|\.)[^.\[\]]*$|\[\d+\]$", "", path)
    return places.get(path, 1)
