"""The hosted tool `mcp`: the tools of servers that speak the Model Context Protocol.

A server is named by the configuration, or, where its host is allowed there, by a request. Its
output is data for the model: bounded, and never interpreted here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shlex
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from dragoman.core.error import Fault, FaultError, bad_request, hint, quoted, unsupported
from dragoman.core.interfaces import Caller
from dragoman.core.item import JSON, Audio, Call, File, Image, Part, Text, Unknown
from dragoman.core.request import FunctionTool
from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import parse_url
from dragoman.tools.run import (
    LONGEST,
    Context,
    Display,
    Session,
    Shown,
    Tool,
    ToolError,
    check_written,
    truncated,
)
from dragoman.wire import json

if TYPE_CHECKING:
    from dragoman.tools.mcp_client import Connection

_log = logging.getLogger("dragoman")

KIND, LIST, CALL = "mcp", "mcp_list_tools", "mcp_call"
WIRE = "responses"

START = 30.0
"""Seconds for a server to start, and again to list its tools."""
AGE = 300.0
"""Seconds after which tools are listed again, unless the server has reported a change
before."""
IDLE = 300.0
"""Seconds after which an unused session is ended."""
MOST_SESSIONS, PER_TENANT = 64, 32
"""The most sessions, of all servers and tenants; and those that one tenant may use at a time."""
MOST_TOOLS = 256
"""The most tools of one server for a model."""
MOST_KNOWN = 2_000
"""The most tools in a list of the conversation that is used: servers may list no more."""
MOST_SCHEMAS = 1024 * 1024
"""Bytes of their names, descriptions and schemas."""
GRACE = 10.0
"""Seconds for the cancellation of a late call."""
LOST = 0.5
"""Seconds in which calls under way learn that their session is lost, and are then sent again."""

Consent = Literal["always", "never"]
_T = TypeVar("_T")

_LABEL = r"^[A-Za-z0-9_-]{1,64}$"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]{0,8192}")
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[A-Za-z0-9.+-]{1,100}")
_CONSENT = {"require_approval": ["always", "never", "an object with these, each a filter of tools"]}
_NO_FIELD = re.compile(r"Object contains unknown field (`.{0,100}).*`\$\.(\w+)", re.DOTALL)
_OURS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "expect", "upgrade", "te"}
    | {"accept", "accept-encoding", "content-type", "last-event-id", "trailer", "keep-alive"}
)
"""Headers that only the transport may set."""
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""Environment variables that every program gets; no others, as they may hold keys."""
_EMPTY: dict[str, JSON] = {"type": "object", "properties": {}}


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server of the configuration, which requests name by its `name` as their `server_label`.

    - It is at `url`, or is run: `command`, without a shell.
    - `headers` are sent to it: the name of each, and the variable of the environment that holds its
      value.
    - `environment` names further variables that a program gets.
    - `approval` is whether calls need consent, by default.
    - `allowed_tools` are those that can be used; None is all.
    - `seconds` is how long a call may take.

    Raises ValueError for invalid options.
    """

    name: Annotated[str, Meta(pattern=_LABEL)]
    url: str | None = None
    command: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    environment: tuple[str, ...] = ()
    approval: Consent = "always"
    allowed_tools: tuple[str, ...] | None = None
    seconds: Annotated[float, Meta(gt=0)] = 60.0

    def __post_init__(self) -> None:
        if not re.fullmatch(_LABEL, self.name):
            problem = "must have 1 to 64 letters, digits, _ or -"
            raise ValueError(f"the name of an MCP server {problem}: {self.name!r}")
        if (self.url is None) == (not self.command):
            raise ValueError(f"the MCP server {self.name!r} needs either url or command")
        if self.url is not None:
            try:
                parse_url(self.url)
            except InvalidUrlError as error:
                raise ValueError(f"the MCP server {self.name!r}: url: {error}") from None
            if self.environment:
                raise ValueError(f"the MCP server {self.name!r} is no program (environment)")
        elif self.headers:
            raise ValueError(f"the MCP server {self.name!r} is a program, which takes no headers")


def read_server(text: str) -> Server:
    """A server as the command line has it: `NAME=URL`, or `NAME=stdio:COMMAND …`. Raises
    ValueError.

    >>> read_server("files=stdio:npx -y server-files '/my data'").command
    ('npx', '-y', 'server-files', '/my data')
    """
    name, mark, where = text.partition("=")
    if not (mark and where):
        raise ValueError(f"an MCP server is NAME=URL or NAME=stdio:COMMAND, and not {text!r}")
    if where.startswith("stdio:"):
        return Server(name=name, command=tuple(shlex.split(where.removeprefix("stdio:"))))
    return Server(name=name, url=where)


class Filter(Struct, forbid_unknown_fields=True):
    """A filter for tools: by name, and by whether they are read-only."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def fits(self, tool: _Listed) -> bool:
        """Whether a tool matches."""
        named = self.tool_names is None or tool.name in self.tool_names
        return named and self.read_only in (None, tool.annotated("readOnlyHint"))


class Rules(Struct, forbid_unknown_fields=True):
    """The filters of tools that need consent, and of those that do not."""

    always: Filter | None = None
    never: Filter | None = None


class Asked(Struct):
    """The fields of the tool in a request."""

    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | Filter | None = None
    require_approval: Consent | Rules | None = None
    server_description: str | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None


class _Listed(Struct, omit_defaults=True):
    """A tool as its server describes it, in the words of `mcp_list_tools`."""

    name: str
    input_schema: dict[str, JSON]
    description: str | None = None
    annotations: dict[str, JSON] | None = None

    def annotated(self, name: str) -> bool:
        """Whether it has such a hint."""
        return (self.annotations or {}).get(name) is True


class _Link:
    """A server for one tenant and one set of credentials: its session, opened on
    demand, and its tools."""

    def __init__(self, server: Server, make: Callable[[], Connection]) -> None:
        self.server = server
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None
        self._make = make
        self._connecting, self._listing = asyncio.Lock(), asyncio.Lock()
        self._connection: Connection | None = None
        self._tools: list[_Listed] = []
        self._listed_at = float("-inf")
        self._failed: tuple[float, Fault] | None = None

    async def tools(self) -> list[_Listed]:
        """All its tools. Raises FaultError."""
        return await self._alone(self._listing, self._list)

    async def call(
        self, name: str, arguments: dict[str, JSON], report: Callable[[Any], None]
    ) -> dict[str, JSON]:
        """Call a tool. Raises FaultError."""
        seconds = self.server.seconds
        return await self._ask(lambda connection: connection.call(name, arguments, seconds, report))

    async def close(self) -> None:
        """End the session."""
        async with self._connecting:
            if self._connection is not None:
                await self._connection.close()

    async def _list(self) -> list[_Listed]:
        now = asyncio.get_running_loop().time()
        changed = self._connection is not None and self._connection.changed
        if changed or now - self._listed_at > AGE:
            found = await self._ask(lambda connection: connection.tools(START))
            self._tools = [msgspec.convert(tool, _Listed) for tool in found]
            self._listed_at = now
        return self._tools

    async def _ask(self, request: Callable[[Connection], Awaitable[_T]]) -> _T:
        """Send a request; again, in a new session, where the server has lost the old one."""
        for _ in range(2):
            connection = await self._alone(self._connecting, self._connect)
            from dragoman.tools.mcp_client import GoneError

            with suppress(GoneError):
                return await request(connection)
        problem = f"The MCP server {self.server.name!r} ended or refused its session twice."
        raise FaultError(Fault("upstream_unreachable", problem, "upstream"))

    async def _connect(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.gone:
            await asyncio.sleep(LOST)
            await connection.close()
            connection = None
        if connection is None:
            # The SDK takes a second to import, which would block the event loop.
            await asyncio.to_thread(import_module, "dragoman.tools.mcp_client")
            connection = self._connection = self._make()
            await connection.start(START)
        return connection

    async def _alone(self, lock: asyncio.Lock, work: Callable[[], Awaitable[_T]]) -> _T:
        """Run this under the lock. Waiters share the failure of the one before, or many
        would wait for a server that hangs, one after the other."""
        clock = asyncio.get_running_loop().time
        began = clock()
        async with lock:
            if self._failed is not None and self._failed[0] > began:
                raise FaultError(self._failed[1])
            try:
                return await work()
            except FaultError as error:
                self._failed = clock(), error.fault
                raise


class MCP:
    """The servers that requests may use: those of the configuration, and any at one of the `hosts`
    (`mcp.example.com`, `10.0.0.7:8000`, `*.example.com`). Of these, addresses that are not public
    are called only where they are in one of the networks in `allow`.

    Raises ImportError without the SDK, and ValueError for two servers with one name, or a variable
    of the environment that is not set.
    """

    kinds = frozenset({KIND})

    def __init__(
        self,
        servers: Iterable[Server] = (),
        *,
        hosts: Sequence[str] = (),
        allow: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if find_spec("mcp") is None:
            raise ImportError(
                "MCP servers need the extra mcp: pip install '.[mcp]' in the checkout."
            )
        self._servers: dict[str, Server] = {}
        self._environ: dict[str, dict[str, str]] = {}
        for server in servers:
            if self._servers.setdefault(server.name, server) is not server:
                raise ValueError(f"there are two MCP servers with the name {server.name!r}")
            # A header has the value of a variable; a program gets the variable itself.
            wanted = server.headers or {name: name for name in server.environment}
            for variable in wanted.values():
                if variable not in environ:
                    raise ValueError(
                        f"the MCP server {server.name!r} needs the environment variable {variable}"
                    )
            self._environ[server.name] = {
                name: environ[variable] for name, variable in wanted.items()
            }
            if server.command:
                usual = {name: environ[name] for name in _INHERITED if name in environ}
                self._environ[server.name] = usual | self._environ[server.name]
        self._hosts = tuple(host if host[:2] == "*." else _authority(host) for host in hosts)
        for network in allow:
            ip_network(network, strict=False)
        self._allow = tuple(allow)
        self._links: OrderedDict[tuple[str, ...], _Link] = OrderedDict()
        self._closing = set[asyncio.Task[None]]()

    async def open(
        self, asked: Mapping[str, JSON], items: Sequence[Unknown], caller: Caller
    ) -> _Session:
        """The tools of the server that a request names. Where they cannot be listed, there are
        none, and the item says why. Raises FaultError for what the request has wrong."""
        try:
            wanted = msgspec.convert(dict(asked), Asked)
        except msgspec.ValidationError as error:
            if (found := _NO_FIELD.match(str(error))) is not None:
                problem = f"has a field that is not known: {found[1]}"
                raise FaultError(bad_request(problem, found[2])) from None
            raise json.invalid(error, "", _CONSENT) from None
        server, headers = self._find(wanted)
        key, link = self._acquire(server, headers, caller, wanted.server_url)
        session = _Session(wanted, lambda: self._release(key, link))
        try:
            await session.fill(server, link, items)
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """End all sessions."""
        for key in tuple(self._links):
            self._drop(key)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _find(self, asked: Asked) -> tuple[Server, dict[str, str]]:
        """The server of a request's tool, and the client's headers for it."""
        label, url = asked.server_label, asked.server_url
        if not re.fullmatch(_LABEL, label):
            problem = "must have 1 to 64 letters, digits, _ or -"
            raise FaultError(bad_request(problem, "server_label"))
        for name in ("connector_id", "tunnel_id", "defer_loading"):
            if getattr(asked, name):
                raise FaultError(unsupported("is not supported by this server", name))
        if "direct" not in (asked.allowed_callers or ["direct"]):
            problem = "tools can only be called by the model itself (direct)"
            raise FaultError(unsupported(problem, "allowed_callers"))
        headers = _headers(asked)
        server = self._servers.get(label)
        if server is not None and url in (None, server.url):
            name = "headers" if asked.headers else "authorization"
            if headers and server.command:
                raise FaultError(unsupported(f"the server {label!r} is a program", name))
            if headers and server.headers:
                # Mixed with our credentials, they could act with our rights for others.
                problem = f"the server {label!r} is configured with credentials of its own"
                raise FaultError(unsupported(problem, name))
            return server, headers
        if url is None:
            known = ", ".join(self._servers) or "none"
            problem = f"there is no server {quoted(label)} here{hint(label, self._servers)}. "
            problem += f"Those of the configuration are: {known}. Or give a server_url."
            raise FaultError(bad_request(problem, "server_label"))
        try:
            parsed = parse_url(url)
        except InvalidUrlError as error:
            raise FaultError(bad_request(str(error), "server_url")) from None
        if parsed.credentials is not None:
            problem = "must have no user and password: use authorization or headers"
            raise FaultError(bad_request(problem, "server_url"))
        where = parsed.authority
        if not any(
            where == host or (host[:2] == "*." and where.endswith(host[1:])) for host in self._hosts
        ):
            problem = f"the host {quoted(where)} is not one that this server may call; its "
            problem += "configuration lists those (hosts)"
            raise FaultError(Fault("permission", f"server_url: {problem}", "client", "server_url"))
        return Server(name=label, url=url), headers

    def _acquire(
        self, server: Server, headers: dict[str, str], caller: Caller, url: str | None
    ) -> tuple[tuple[str, ...], _Link]:
        """The link to a server, with its use count incremented."""
        guarded = self._servers.get(server.name) is not server
        secret = hashlib.sha256(msgspec.json.encode(sorted(headers.items()))).hexdigest()
        key = (caller.tenant, server.name, server.url if guarded and server.url else "", secret)
        link = self._links.get(key)
        if link is None or not link.users:
            used = [key for key, each in self._links.items() if each.users]
            own = [key for key in used if key[0] == caller.tenant]
            for found, most in ((own, PER_TENANT), (used, MOST_SESSIONS)):
                if len(found) >= most:
                    problem = f"All {most} sessions with MCP servers are in use. Try again."
                    raise FaultError(Fault("overloaded", problem))
            if link is None and len(self._links) >= MOST_SESSIONS:
                self._drop(next(key for key in self._links if key not in used))
        if link is None:
            sent = headers if guarded else headers or self._environ[server.name]

            def make() -> Connection:
                from dragoman.tools.mcp_client import over_http, program

                if server.url is None:
                    return program(server.name, server.command, self._environ[server.name])
                allow = self._allow if guarded else None
                seconds = server.seconds + GRACE
                return over_http(server.name, server.url, sent, allow, seconds, caller.tenant)

            link = self._links[key] = _Link(server, make)
        self._links.move_to_end(key)
        link.users += 1
        if link.timer is not None:
            link.timer.cancel()
        return key, link

    def _release(self, key: tuple[str, ...], link: _Link) -> None:
        link.users -= 1
        if not link.users and self._links.get(key) is link:
            link.timer = asyncio.get_running_loop().call_later(IDLE, self._drop, key)

    def _drop(self, key: tuple[str, ...]) -> None:
        link = self._links.pop(key)
        if link.timer is not None:
            link.timer.cancel()
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _authority(host: str) -> str:
    try:
        return parse_url(f"https://{host}").authority
    except InvalidUrlError as error:
        raise ValueError(f"{host!r} is not a host that MCP servers may be at: {error}") from None


def _headers(asked: Asked) -> dict[str, str]:
    """The client's headers for the server. Raises FaultError, without quoting values."""
    headers = {name.lower(): value for name, value in (asked.headers or {}).items()}
    for name, value in headers.items():
        if not (_HEADER.fullmatch(name) and _VALUE.fullmatch(value)):
            problem = f"{quoted(name)} or its value has characters that cannot be sent, or too many"
            raise FaultError(bad_request(problem, "headers"))
        if name in _OURS or name.startswith(("mcp-", "proxy-")):
            raise FaultError(bad_request(f"{quoted(name)} cannot be set by a request", "headers"))
    if asked.authorization is not None:
        if "authorization" in headers:
            problem = "is given a second time, in headers"
            raise FaultError(bad_request(problem, "authorization"))
        if not _VALUE.fullmatch(asked.authorization):
            problem = "has characters that cannot be sent, or too many"
            raise FaultError(bad_request(problem, "authorization"))
        headers["authorization"] = f"Bearer {asked.authorization}"
    return headers


class _Session(Session):
    """The tools of one server, for one answer."""

    def __init__(self, asked: Asked, release: Callable[[], None]) -> None:
        self.namespace, self.description = asked.server_label, asked.server_description
        self.tools: Sequence[Tool] = ()
        self._asked = asked
        self._release: Callable[[], None] | None = release

    async def fill(self, server: Server, link: _Link, items: Sequence[Unknown]) -> None:
        """Find the tools: in the conversation, else by asking the server."""
        label, tools, problem = self._asked.server_label, list[_Listed](), None
        known = _known(items, label)
        try:
            tools = self._allowed(server, await link.tools() if known is None else known)
        except FaultError as error:
            problem = error.fault.message
            _log.warning("no tools: %s", problem)
        if known is None:
            listed = [
                msgspec.to_builtins(tool) | {"description": tool.description} for tool in tools
            ]
            value = {"server_label": label, "tools": listed, "error": problem}
            self.items = (Unknown(WIRE, LIST, value),)
        by_name = dict[str, _Tool]()
        for tool in tools:
            made = _Tool(tool, label, link, _approval(self._asked.require_approval, server, tool))
            by_name.setdefault(made.spec.name, made)
        self.tools = tuple(by_name.values())

    def _allowed(self, server: Server, tools: list[_Listed]) -> list[_Listed]:
        """The tools that configuration and request allow. Raises FaultError for too many
        or too large ones."""
        wanted = self._asked.allowed_tools
        wanted = Filter(wanted) if isinstance(wanted, list) else wanted or Filter()
        only = Filter(None if server.allowed_tools is None else list(server.allowed_tools))
        tools = [tool for tool in tools if wanted.fits(tool) and only.fits(tool)]
        size = 0
        for tool in tools:
            size += len(msgspec.json.encode(tool))
            if size > MOST_SCHEMAS:  # a list of the conversation may be as long as that
                break
        if len(tools) > MOST_TOOLS or size > MOST_SCHEMAS:
            problem = f"The MCP server {server.name!r} has {len(tools)} tools of {size} bytes, and "
            problem += f"{MOST_TOOLS} of {MOST_SCHEMAS} bytes can be used. Name those that are "
            raise FaultError(Fault("too_large", problem + "needed in allowed_tools.", "client"))
        return tools

    async def close(self) -> None:
        """The answer has ended."""
        if self._release is not None:
            self._release()
            self._release = None


def _known(items: Sequence[Unknown], label: str) -> list[_Listed] | None:
    """The tools of a server that the conversation lists already."""
    for item in reversed(items):
        if item.kind == LIST and item.value.get("server_label") == label:
            tools = item.value.get("tools")
            if item.value.get("error") or (isinstance(tools, list) and len(tools) > MOST_KNOWN):
                continue
            with suppress(msgspec.ValidationError):
                return msgspec.convert(tools, list[_Listed])
    return None


def _approval(asked: Consent | Rules | None, server: Server, tool: _Listed) -> Consent:
    """Whether calls of a tool need consent; where both rules fit, they do."""
    if asked is None:
        return server.approval
    if isinstance(asked, str):
        return asked
    if asked.always is not None and asked.always.fits(tool):
        return "always"
    return "never" if asked.never is not None and asked.never.fits(tool) else "always"


def fit_name(name: str) -> str:
    """A unique name that is valid for models.

    >>> fit_name("read-file"), fit_name("files/read all")
    ('read-file', 'files_read_all_b6df1b07')
    """
    if re.fullmatch(_LABEL, name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', name)[:55]}_{digest}"


class _Tool(Tool):
    """A tool of a server."""

    def __init__(self, tool: _Listed, label: str, link: _Link, approval: Consent) -> None:
        self.spec = FunctionTool(fit_name(tool.name), tool.description, tool.input_schema or _EMPTY)
        self.approval = approval
        self.seconds = link.server.seconds + START + GRACE  # its own limit is lower
        self.repeatable = tool.annotated("readOnlyHint") or tool.annotated("idempotentHint")
        self.display = Display(CALL, self._opened, delta="arguments", fails=True)
        self._name, self._label, self._link = tool.name, label, link

    def _opened(self, call: Call) -> dict[str, JSON]:
        return {"server_label": self._label, "name": self._name, "arguments": call.text}

    async def call(self, text: str, context: Context) -> Shown:
        """Call it. Every failure is shown in the item, and to the model."""
        try:
            check_written(text)
            arguments = json.load(text) if text.strip() else {}
            msgspec.json.encode(arguments)
        except ToolError as error:
            return _failed(_protocol(str(error), _INVALID))
        except UnicodeEncodeError:
            return _failed(_protocol("The arguments have half of a character.", _INVALID))
        except ValueError as error:
            return _failed(_protocol(f"The arguments cannot be read: it {error}.", _INVALID))
        if not isinstance(arguments, dict):
            problem = f"The arguments are {json.kind(arguments)}, and must be an object."
            return _failed(_protocol(problem, _INVALID))
        try:
            return _shown(await self._link.call(self._name, arguments, context.report))
        except FaultError as error:
            fault = error.fault
            if fault.status is not None:
                about = {"type": "http_error", "code": fault.status, "message": fault.message}
                return _failed(about)
            late = fault.code == "upstream_timeout"
            code = int(fault.upstream_code or (_LATE if late else _LOST))
            return _failed(_protocol(fault.message, code))


_INVALID, _LATE, _LOST = -32602, -32001, -32000  # codes of JSON-RPC and of the protocol


def _protocol(message: str, code: int) -> dict[str, JSON]:
    return {"type": "mcp_protocol_error", "code": code, "message": message}


def _failed(error: dict[str, JSON]) -> Shown:
    return Shown(error["message"], {"output": None, "error": error}, failed=True)


def _shown(result: dict[str, JSON]) -> Shown:
    """The result of a call, for the model and for the item, in which media are only named."""
    blocks: list[dict[str, JSON]] = result.get("content") or []
    parts: list[Part] = []
    texts: list[str] = []  # that follow each other, not in `parts` yet
    lines: list[str] = []
    if not blocks and result.get("structuredContent") is not None:
        # A server that gives both has the same in its text.
        blocks = [{"type": "text", "text": json.text(result["structuredContent"])}]
    for block in blocks:
        part, words = _part(block)
        lines.append(words)
        if part is None:
            texts.append(words)
            continue
        if texts:
            parts.append(Text("\n".join(texts)))
            texts = []
        parts.append(part)
    if parts and texts:
        parts.append(Text("\n".join(texts)))
    shown = truncated("\n".join(lines), LONGEST)
    output: str | tuple[Part, ...] = tuple(parts) or "\n".join(texts)
    if result.get("isError"):
        content = [{"type": "text", "text": shown}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        why = output or "The tool failed, and did not say why."
        return Shown(why, {"output": None, "error": error}, failed=True)
    return Shown(output or "(no output)", {"output": shown, "error": None})


def _part(block: dict[str, JSON]) -> tuple[Part | None, str]:
    """A block of a result as a part for the model, unless it is text; and as text."""
    match block:
        case {"type": "text", "text": str(text)}:
            return None, text
        case {"type": "image" | "audio" as kind, "data": str(data), "mimeType": str(type)}:
            return _media(kind, data, type, "")
        case {"type": "resource", "resource": {"text": str(text)}}:
            return None, text
        case {"type": "resource", "resource": {"blob": str(data), "uri": str(uri)} as resource}:
            return _media("file", data, str(resource.get("mimeType") or ""), uri)
        case {"type": "resource_link", "uri": str(uri)}:
            about = (block.get("title") or block.get("name"), block.get("description"))
            return None, "\n".join([uri, *filter(None, about)])
        case _:
            return (
                None,
                f"[a block of type {quoted(str(block.get('type')))}, which cannot be shown]",
            )


def _media(kind: str, data: str, type: str, uri: str) -> tuple[Part | None, str]:
    """An image, a sound or a file. Data of another type than declared is left out: the model's
    server would refuse the whole conversation."""
    kind = "image" if type.startswith("image/") else kind
    type = type or "application/octet-stream"
    try:
        size = len(b64decode(data, validate=True))
    except ValueError:
        size = 0
    if not size or not _MEDIA_TYPE.fullmatch(type) or (kind != "file" and kind != type[:5]):
        return None, f"[{kind} of type {quoted(type)}, which is empty or not what it says]"
    words = f"[{kind} of type {type}, {size} bytes]"
    if kind == "audio":
        sound = type[6:].removeprefix("x-")
        return Audio(data, "mp3" if sound == "mpeg" else sound, words), words
    url = f"data:{type};base64,{data}"
    if kind == "image":
        return Image(url), words
    return File(data=url, filename=uri.rpartition("/")[2][-100:] or "file"), words
