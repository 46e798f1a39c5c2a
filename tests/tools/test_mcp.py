"""MCP servers as tools: real ones of the official SDK, over both transports, and hostile ones."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dragoman.agent.hosted import HostedTools
from dragoman.core.error import FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.item import Audio, CustomToolCall, File, FunctionCall, Image, Text
from dragoman.core.request import NamedTool
from dragoman.server.build import hosted
from dragoman.server.config import ConfigurationError, read
from dragoman.tools import mcp
from dragoman.tools.mcp import MCP, Server, fit_name, read_server
from dragoman.tools.run import MOST_WRITTEN
from tests.agent.stage import Model
from tests.mock import Reply, plain
from tests.oracle import problems, sdk_problems
from tests.server.state.storing import storing
from tests.tools.mcp_fake import Fake, asked, listed, mcp_tasks, opened, ran, served
from tests.wire.responses.order_checker import check_order, parse

CHILD = Path(__file__).with_name("mcp_server.py")
SESSION = "mcp-session-id"


# ---- the configuration, and what a request has wrong ---------------------------------------------


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: read_server("x"), "NAME=URL or NAME=stdio:COMMAND, and not 'x'"),
        (lambda: read_server("x="), "NAME=URL"),
        (lambda: read_server("a b=http://h/"), "letters, digits, _ or -: 'a b'"),
        (lambda: read_server("x=ftp://h"), "'x': url: the URL must begin with http"),
        (lambda: read_server("x=stdio:"), "needs either url or command"),
        (lambda: Server(name="x", url="http://h/", command=("y",)), "needs either"),
        (lambda: Server(name="x", command=("y",), headers={"a": "B"}), "takes no headers"),
        (lambda: Server(name="x", url="http://h/", environment=("A",)), "is no program"),
        (lambda: MCP([read_server("x=http://a/"), read_server("x=http://b/")]), "there are two"),
        (
            lambda: MCP([Server(name="x", url="http://h/", headers={"a": "UNSET"})], environ={}),
            "'x' needs the environment variable UNSET",
        ),
        (
            lambda: MCP([Server(name="x", command=("y",), environment=("UNSET",))], environ={}),
            "variable UNSET",
        ),
        (lambda: MCP(hosts=["a/b c"]), "is not a host"),
        (lambda: MCP(allow=["everything"]), "everything"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


def test_servers_need_the_sdk(monkeypatch) -> None:
    monkeypatch.setattr(mcp, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"the extra mcp: pip install '\.\[mcp\]'"):
        MCP()


FILE = """
[[tools]]
use = "mcp:docs=https://docs.test/mcp"
headers = {authorization = "DOCS_KEY"}
approval = "never"
allowed_tools = ["search"]
seconds = 5

[[tools]]
use = "mcp:files=stdio:server-files '/my data'"
environment = ["HOME"]

[[tools]]
use = "mcp"
hosts = ["other.test"]
allow = ["10.0.0.0/8"]
"""


def test_servers_are_configured_in_the_file() -> None:
    environ = {"DOCS_KEY": "Bearer secret", "HOME": "/h", "OTHER": "x"}
    (made,) = hosted(read(FILE).tools, environ)
    docs = Server(
        name="docs",
        url="https://docs.test/mcp",
        headers={"authorization": "DOCS_KEY"},
        approval="never",
        allowed_tools=("search",),
        seconds=5,
    )
    command = ("server-files", "/my data")
    files = Server(name="files", command=command, environment=("HOME",))
    assert made._servers == {"docs": docs, "files": files}
    assert made._environ == {
        "docs": {"authorization": "Bearer secret"},
        "files": {"HOME": "/h"},
    }
    assert (made._hosts, made._allow) == (("other.test",), ("10.0.0.0/8",))
    with pytest.raises(ConfigurationError, match="needs the environment variable DOCS_KEY"):
        hosted(read(FILE).tools, {"HOME": "/"})


@pytest.mark.parametrize(
    ("request_", "param", "problem"),
    [
        ({}, "server_label", "is missing"),
        (asked("a b"), "server_label", "letters, digits"),
        (asked("web"), "server_label", "there is no server 'web' here; did you mean web1?"),
        (asked(server_url=3), "server_url", "is a number, and must be a string"),
        (asked(server_url="file:///etc/passwd"), "server_url", "must begin with http"),
        (asked(server_url="stdio:true"), "server_url", "must begin with http"),
        (asked(server_url="https://u:p@good.test/"), "server_url", "no user and password"),
        (asked(server_url="https://evil.test/mcp"), "server_url", "'evil.test' is not one that"),
        (asked(server_url="https://good.test:22/"), "server_url", "'good.test:22' is not"),
        (asked(server_url="https://good.test.evil.test/"), "server_url", "is not one"),
        (asked(server_url="https://evilall.test/"), "server_url", "is not one"),
        (asked(connector_id="connector_gmail"), "connector_id", "is not supported"),
        (asked(tunnel_id="tunnel_1"), "tunnel_id", "is not supported"),
        (asked("web1", defer_loading=True), "defer_loading", "is not supported"),
        (asked("web1", allowed_callers=["programmatic"]), "allowed_callers", "only be called"),
        (
            asked("web1", require_approval="maybe"),
            "require_approval",
            "must be one of always, never, an",
        ),
        (
            asked("web1", allowed_tools={"names": []}),
            "allowed_tools",
            "has a field that is not known: `names`",
        ),
        (asked("web1", headers={"a": "b\r\nc: d"}), "headers", "cannot be sent"),
        (asked("web1", headers={"a b": "c"}), "headers", "cannot be sent"),
        (asked("web1", headers={"Host": "other"}), "headers", "'host' cannot be set"),
        (asked("web1", headers={"Mcp-Session-Id": "1"}), "headers", "cannot be set"),
        (asked("web1", authorization="a\nb"), "authorization", "cannot be sent"),
        (
            asked("web1", authorization="a", headers={"Authorization": "b"}),
            "authorization",
            "a second time",
        ),
        (asked("keyed", authorization="t"), "authorization", "credentials of its own"),
        (asked("keyed", headers={"x-user": "admin"}), "headers", "credentials of its own"),
        (asked("run", authorization="t"), "authorization", "is a program"),
    ],
)
async def test_what_a_request_has_wrong_is_named_and_nothing_is_called(
    request_, param, problem
) -> None:
    hosted = MCP(
        [
            read_server("web1=http://127.0.0.1:1/"),
            Server(name="keyed", url="http://127.0.0.1:1/", headers={"authorization": "KEY"}),
            read_server("run=stdio:/nowhere"),
        ],
        hosts=["good.test", "*.all.test"],
        environ={"KEY": "k"},
    )
    with pytest.raises(FaultError) as raised:
        await hosted.open(request_, (), Caller())
    assert raised.value.fault.param == param
    assert problem in raised.value.fault.message
    assert raised.value.fault.blame == "client"
    assert not hosted._links


@pytest.mark.parametrize(
    "text", ["t\nb", "b\r\nc: d", "\x00secret"], ids=["token", "header", "zero"]
)
async def test_an_error_about_a_secret_does_not_quote_it(text) -> None:
    hosted = MCP([read_server("web1=http://127.0.0.1:1/")])
    for more in ({"authorization": text}, {"headers": {"x": text}}):
        with pytest.raises(FaultError) as raised:
            await hosted.open(asked("web1", **more), (), Caller())
        assert text not in str(raised.value)


# ---- which tools, and whether they need consent --------------------------------------------------

TOOLS = (
    {"name": "read", "annotations": {"readOnlyHint": True}},
    {"name": "write", "annotations": {"readOnlyHint": False, "idempotentHint": True}},
    {"name": "other"},
)
NOWHERE = Server(name="s", url="http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["read", "write", "other"]),
        ([], []),
        (["other", "read", "gone"], ["read", "other"]),
        ({}, ["read", "write", "other"]),
        ({"read_only": True}, ["read"]),
        ({"read_only": False}, ["write", "other"]),
        ({"read_only": True, "tool_names": ["write"]}, []),
        ({"tool_names": ["write"]}, ["write"]),
    ],
)
async def test_a_request_chooses_among_the_tools(allowed, names) -> None:
    request = asked(allowed_tools=allowed)
    async with opened(NOWHERE, request=request, items=[listed(*TOOLS)]) as session:
        assert [tool.spec.name for tool in session.tools] == names


async def test_a_request_cannot_choose_what_the_configuration_leaves_out() -> None:
    server = Server(name="s", url="http://127.0.0.1:1/", allowed_tools=("read",))
    request = asked(allowed_tools=["read", "write"])
    async with opened(server, request=request, items=[listed(*TOOLS)]) as session:
        assert [tool.spec.name for tool in session.tools] == ["read"]


@pytest.mark.parametrize(
    ("asks", "needed"),
    [
        ({}, "always always always"),
        ({"require_approval": None}, "always always always"),
        ({"require_approval": "always"}, "always always always"),
        ({"require_approval": "never"}, "never never never"),
        ({"require_approval": {"never": {"tool_names": ["read"]}}}, "never always always"),
        ({"require_approval": {"never": {"read_only": True}}}, "never always always"),
        ({"require_approval": {"always": {"tool_names": ["read"]}}}, "always always always"),
        (
            {"require_approval": {"always": {"read_only": False}, "never": {}}},
            "never always always",
        ),
        ({"require_approval": {}}, "always always always"),
    ],
)
async def test_consent_is_needed_unless_the_request_says_otherwise(asks, needed) -> None:
    request = {"type": "mcp", "server_label": "s", **asks}
    async with opened(NOWHERE, request=request, items=[listed(*TOOLS)]) as session:
        assert [tool.approval for tool in session.tools] == needed.split()
        assert [tool.repeatable for tool in session.tools] == [True, True, False]
    never = Server(name="s", url="http://127.0.0.1:1/", approval="never")
    async with opened(never, request=request, items=[listed(*TOOLS)]) as session:
        silent = asks.get("require_approval") is None
        assert (session.tools[0].approval == "never") is (silent or needed.startswith("never"))


async def test_a_list_in_the_conversation_is_used_and_nothing_is_called() -> None:
    items = [listed({"name": "old"}), listed({"name": "x"}, label="other"), listed({"name": "new"})]
    async with opened(NOWHERE, request=asked(server_description="D"), items=items) as session:
        assert [tool.spec.name for tool in session.tools] == ["new"]
        assert session.items == ()
        assert (session.namespace, session.description) == ("s", "D")
        assert session.cited is None
        await session.close()
        await session.close()


@pytest.mark.parametrize(
    "item", [listed(error="It failed."), listed({"name": 3}), listed({}, label="other")]
)
async def test_a_list_that_failed_or_is_none_is_asked_for_again(item) -> None:
    async with opened(NOWHERE, items=[item]) as session:
        assert session.tools == ()
        assert "the MCP server 's'" in session.items[0].value["error"]


async def test_names_are_made_fit_for_models_and_shown_as_they_are() -> None:
    names = ["plain_name-1", "files/read", "files.read", "ünï", "x" * 200, "x" * 201, ""]
    names.append("files/read")
    items = [listed(*({"name": name} for name in names))]
    async with opened(NOWHERE, items=items) as session:
        fit = [tool.spec.name for tool in session.tools]
        assert fit == [fit_name(name) for name in names[:-1]]
        assert len(set(fit)) == len(fit)
        assert all(0 < len(name) <= 64 and name.isascii() for name in fit)
        call = FunctionCall("c", fit[1], '{"a')
        display = session.tools[1].display
        shown = {"server_label": "s", "name": "files/read", "arguments": '{"a'}
        assert display.opened(call) == shown
        assert display.opened(CustomToolCall("c", fit[1], '{"a')) == shown
        assert (display.kind, display.delta, display.fails) == ("mcp_call", "arguments", True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "cannot be read: it is not valid JSON"),
        ("[1]", "are an array, and must be an object"),
        ("null", "are null, and must be"),
        ('{"a": "\\ud83d"}', "have half of a character"),
        ("[" * 300 + "]" * 300, "nested"),
        (f"[{'1,' * MOST_WRITTEN}1]", "more than 100000 values"),
    ],
)
async def test_arguments_that_are_none_are_an_error_for_the_model(arguments, problem) -> None:
    async with opened(NOWHERE, items=[listed({"name": "t"})]) as session:
        result = await ran(session, "t", arguments)
    assert result.error
    assert problem in result.output.output
    error = result.fields["error"]
    assert (error["type"], error["code"]) == ("mcp_protocol_error", -32602)
    assert error["message"] == result.output.output


# ---- servers of the official SDK -----------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a server of the SDK, and the headers of what it was sent."""
    from tests.tools.mcp_server import server

    seen: list[dict[str, str]] = []
    app = server.streamable_http_app()

    async def remembering(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await app(scope, receive, send)

    config = uvicorn.Config(remembering, port=0, log_level="error", timeout_graceful_shutdown=1)
    host = uvicorn.Server(config)
    thread = threading.Thread(target=host.run)
    thread.start()
    while not host.started:
        threading.Event().wait(0.01)
    port = host.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/mcp", seen
    host.should_exit = True
    thread.join()


async def test_a_real_server_over_both_transports(real) -> None:
    program = Server(name="program", command=(sys.executable, str(CHILD)))
    hosted = MCP(
        [program, Server(name="http", url=real[0], headers={"authorization": "TOKEN"})],
        environ={"TOKEN": "Bearer secret"},
    )
    for label in ("program", "http"):
        session = await hosted.open(asked(label), (), Caller())
        (item,) = session.items
        assert item.kind == "mcp_list_tools"
        assert item.value["error"] is None, item.value["error"]
        tools = {tool["name"]: tool for tool in item.value["tools"]}
        assert set(tools) == {"total", "nothing", "picture", "refuse", "wait", "counts", "ask"}
        assert tools["total"]["annotations"] == {"readOnlyHint": True}
        schema = tools["total"]["input_schema"]
        assert schema["properties"]["points"]["items"] == {"$ref": "#/$defs/Point"}
        assert schema["$defs"]["Point"]["properties"]["y"]["default"] is None
        specs = {tool.spec.name: tool.spec for tool in session.tools}
        assert specs["total"].parameters == schema
        assert specs["nothing"].description == "Takes no arguments."

        result = await ran(session, "total", '{"points": [{"x": 1}, {"x": 2}], "start": "3"}')
        assert result.output.output == "6"
        assert result.fields == {"output": "6", "error": None}
        assert (await ran(session, "nothing", "")).output.output == "done"
        result = await ran(session, "picture", "{}")
        image = Image("data:image/png;base64,iVBORyBkb3Q=")
        assert result.output.output == (Text("a dot"), image, Text("and more"))
        assert result.fields["output"] == "a dot\n[image of type image/png, 8 bytes]\nand more"
        result = await ran(session, "refuse")
        assert result.error
        assert result.output.output == "not today"
        content = [{"type": "text", "text": "not today"}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        assert result.fields == {"output": None, "error": error}
        result = await ran(session, "total", '{"points": 3}')
        assert result.error
        result = await ran(session, "ask")
        assert result.error
        assert "elicitation" in str(result.output.output)

        reports: asyncio.Queue[Any] = asyncio.Queue()
        waiting = asyncio.create_task(ran(session, "wait", "{}", reports.put_nowait))
        said = {"progress": 1.0, "total": 2.0, "message": "half of it"}
        assert await reports.get() == said
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while (await ran(session, "counts")).output.output != "1 1":
            await asyncio.sleep(0.01)
        await session.close()
    await hosted.close()
    assert {each["authorization"] for each in real[1]} == {"Bearer secret"}


# ---- sessions and lists --------------------------------------------------------------------------


async def test_tools_are_listed_once_for_a_tenant_and_its_credentials() -> None:
    fake = Fake()
    async with served(fake) as (server, _):
        hosted = MCP([server])
        for caller in (Caller(tenant="a"), Caller(tenant="a"), Caller(tenant="b")):
            session = await hosted.open(asked(), (), caller)
            assert len(session.items) == 1
            await session.close()
        assert (fake.count("initialize"), fake.count("tools/list")) == (2, 2)
        for token in ("x", "y", "x"):
            session = await hosted.open(asked(authorization=token), (), Caller(tenant="a"))
            await ran(session, "t")
            await session.close()
        assert fake.count("initialize") == 4
        sent = {headers.get("authorization") for name, headers, _ in fake.asked if "/call" in name}
        assert sent == {"Bearer x", "Bearer y"}
        assert "Bearer" not in repr(hosted._links.keys())
        # All at once: one session, one list.
        caller = Caller(tenant="c")
        await asyncio.gather(*(hosted.open(asked(), (), caller) for _ in range(5)))
        assert (fake.count("initialize"), fake.count("tools/list")) == (5, 5)
        await hosted.close()


async def test_a_list_is_renewed_when_it_is_old_or_the_server_says_so(monkeypatch) -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    event = b"event: message\ndata: %b\n\n"

    def call(message: Any) -> Reply:
        result = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}
        events = b"".join(event % json.dumps(each).encode() for each in (changed, result))
        return plain(200, events, type="text/event-stream")

    fake = Fake(tools_call=call)
    async with served(fake) as (server, _):
        hosted = MCP([server])
        session = await hosted.open(asked(), (), Caller())
        assert (await ran(session, "t")).output.output == "(no output)"
        await hosted.open(asked(), (), Caller())
        assert fake.count("tools/list") == 2
        await hosted.open(asked(), (), Caller())
        assert fake.count("tools/list") == 2
        monkeypatch.setattr(mcp, "AGE", -1.0)
        await hosted.open(asked(), (), Caller())
        assert fake.count("tools/list") == 3
        assert fake.count("initialize") == 1
        await hosted.close()


async def test_a_server_that_forgot_the_session_is_given_a_new_one_once() -> None:
    fake = Fake()
    async with served(fake) as (server, _), opened(server) as session:
        await ran(session, "t")
        fake.lost = {"1"}
        result = await ran(session, "t")
        assert result.output.output == "ok"
        assert fake.sessions == 2
        fake.lost = {"2", "3"}
        result = await ran(session, "t")
        assert result.error
        assert "refused its session twice" in result.output.output
        assert fake.sessions == 3


async def test_sessions_are_bounded_and_idle_ones_end(monkeypatch) -> None:
    monkeypatch.setattr(mcp, "MOST_SESSIONS", 2)
    fake = Fake()
    async with served(fake) as (server, _):
        hosted = MCP([server])
        one, two = [await hosted.open(asked(), (), Caller(tenant=name)) for name in "ab"]
        with pytest.raises(FaultError) as raised:
            await hosted.open(asked(), (), Caller(tenant="c"))
        assert raised.value.fault.code == "overloaded"
        await one.close()
        three = await hosted.open(asked(), (), Caller(tenant="c"))
        assert len(hosted._links) == 2
        monkeypatch.setattr(mcp, "IDLE", 0.0)
        again = await hosted.open(asked(), (), Caller(tenant="b"))
        await two.close()
        await asyncio.sleep(0.01)
        assert len(hosted._links) == 2, "one is used by another answer"
        await again.close()
        await three.close()
        while hosted._links or hosted._closing:
            await asyncio.sleep(0.01)
        assert not mcp_tasks()
        await hosted.close()


async def test_one_tenant_leaves_sessions_to_others(monkeypatch) -> None:
    monkeypatch.setattr(mcp, "PER_TENANT", 2)
    fake = Fake()
    async with served(fake) as (server, _):
        hosted = MCP([server])
        await (await hosted.open(asked(authorization="z"), (), Caller("a"))).close()
        mine = [await hosted.open(asked(authorization=key), (), Caller("a")) for key in "xy"]
        with pytest.raises(FaultError, match="All 2 sessions") as raised:
            await hosted.open(asked(authorization="z"), (), Caller("a"))
        assert raised.value.fault.code == "overloaded"
        mine += [await hosted.open(asked(authorization="x"), (), Caller(name)) for name in "ab"]
        for session in mine:
            await session.close()
        await hosted.close()


async def test_a_session_that_is_closed_after_its_tool_starts_no_timer() -> None:
    fake = Fake()
    async with served(fake) as (server, _):
        hosted = MCP([server])
        session = await hosted.open(asked(), (), Caller("a"))
        (link,) = hosted._links.values()
        await hosted.close()
        await session.close()
        assert (link.users, link.timer) == (0, None)


async def test_who_waits_for_a_server_that_hangs_shares_its_failure(monkeypatch) -> None:
    monkeypatch.setattr(mcp, "START", 0.1)
    fake = Fake(initialize=Reply([], hang=True))
    async with served(fake) as (server, _):
        hosted = MCP([server])
        sessions = await asyncio.gather(*(hosted.open(asked(), (), Caller()) for _ in range(9)))
        problems = {session.items[0].value["error"] for session in sessions}
        assert problems == {"The MCP server 's' was not ready within 0.1 seconds."}
        assert fake.count("initialize") == 1
        await hosted.open(asked(), (), Caller())
        assert fake.count("initialize") == 2
        await hosted.close()


async def test_an_answer_that_is_cancelled_while_a_server_starts_leaves_nothing() -> None:
    fake = Fake(initialize=Reply([], hang=True))
    async with served(fake) as (server, answering):
        hosted = MCP([server])
        opening = asyncio.create_task(hosted.open(asked(), (), Caller()))
        while not fake.count("initialize"):
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        for each in answering.asked:
            await each.gone
        assert not mcp_tasks()
        assert [link.users for link in hosted._links.values()] == [0]
        await hosted.close()


# ---- what a result may be ------------------------------------------------------------------------

PNG = "iVBORyBkb3Q="


BLOCKS: list[tuple[list[Any], Any, str | None]] = [
    ([], "(no output)", ""),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb", "a\nb"),
    (
        [{"type": "image", "data": PNG, "mimeType": "image/svg+xml"}],
        (Image(f"data:image/svg+xml;base64,{PNG}"),),
        "[image of type image/svg+xml, 8 bytes]",
    ),
    (
        [{"type": "audio", "data": PNG, "mimeType": "audio/mpeg"}],
        (Audio(PNG, "mp3", "[audio of type audio/mpeg, 8 bytes]"),),
        "[audio of type audio/mpeg, 8 bytes]",
    ),
    (
        [{"type": "audio", "data": PNG, "mimeType": "audio/x-wav"}],
        (Audio(PNG, "wav", "[audio of type audio/x-wav, 8 bytes]"),),
        "[audio of type audio/x-wav, 8 bytes]",
    ),
    (
        [{"type": "image", "data": "not base64", "mimeType": "image/png"}],
        "[image of type 'image/png', which is empty or not what it says]",
        None,
    ),
    (
        [{"type": "image", "data": PNG, "mimeType": "text/html"}],
        "[image of type 'text/html', which is empty or not what it says]",
        None,
    ),
    (
        [{"type": "image", "data": PNG, "mimeType": "image/a\nb"}],
        "[image of type 'image/a\\nb', which is empty or not what it says]",
        None,
    ),
    ([{"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}], "A", "A"),
    (
        [{"type": "resource", "resource": {"uri": "file:///d/a.bin", "blob": PNG}}],
        (File(data=f"data:application/octet-stream;base64,{PNG}", filename="a.bin"),),
        "[file of type application/octet-stream, 8 bytes]",
    ),
    (
        [{"type": "resource", "resource": {"uri": "x", "blob": PNG, "mimeType": "image/gif"}}],
        (Image(f"data:image/gif;base64,{PNG}"),),
        "[image of type image/gif, 8 bytes]",
    ),
    (
        [{"type": "resource_link", "uri": "http://a/", "name": "A", "description": "about"}],
        "http://a/\nA\nabout",
        None,
    ),
]


async def test_blocks_of_a_result_become_parts() -> None:
    fake = Fake()
    async with served(fake) as (server, _), opened(server) as session:
        for content, output, shown in BLOCKS:
            fake.answers["tools/call"] = {"content": content}
            result = await ran(session, "t")
            assert not result.error
            assert result.output.output == output
            assert result.fields["output"] == (output if shown is None else shown)


async def test_structured_content_is_shown_where_there_is_no_text() -> None:
    content = {"structuredContent": {"a": None, "b": [1.0]}, "content": []}
    async with served(Fake(tools_call=content)) as (server, _), opened(server) as session:
        assert (await ran(session, "t")).output.output == '{"a":null,"b":[1.0]}'


async def test_blocks_beyond_a_limit_are_left_out_with_a_note() -> None:
    content = {"content": [{"type": "text", "text": "x"}] * 300}
    async with served(Fake(tools_call=content)) as (server, _), opened(server) as session:
        output = (await ran(session, "t")).output.output
    assert output.count("x\n") == 256
    assert output.endswith("\n[44 more blocks are left out]")


async def test_arguments_are_passed_as_the_model_wrote_them() -> None:
    fake = Fake({"inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}})
    text = '{"b": [1, 1.0, null, {"": "\\u00fc \\n"}], "a": 12345678901234567890, "": {}}'
    async with served(fake) as (server, _), opened(server) as session:
        await ran(session, "t", text)
        await ran(session, "t", "  ")
    sent = [message["params"]["arguments"] for name, _, message in fake.asked if "/call" in name]
    assert [json.dumps(each) for each in sent] == [json.dumps(json.loads(text)), "{}"]


# ---- through a server of ours --------------------------------------------------------------------


async def test_a_chain_with_consent_lists_tools_once_and_is_read_by_the_official_sdk() -> None:
    fake = Fake({"name": "files/read", "annotations": {"readOnlyHint": True}}, {"name": "write"})
    read, write = fit_name("files/read"), "write"
    first = [FunctionCall("a", read, '{"path": "x"}', "s"), FunctionCall("b", write, "{}", "s")]
    model = Model(first, "Written.", FunctionCall("c", read, "{", "s"), "No.")
    async with served(fake) as (configured, _):
        engine = HostedTools(model, [MCP([configured])])
        tool = asked(require_approval={"never": {"read_only": True}}, authorization="secret")
        async with storing(engine) as server:
            answer = await server.ask(stream=True, tools=[tool])
            events = parse(answer.body)[0]
            check_order(events)
            wrong = [p for event in events for p in (*problems(event), *sdk_problems(event))]
            assert not wrong
            body = events[-1]["response"]
            listed_, called, asks = body["output"]
            assert (listed_["type"], listed_["error"]) == ("mcp_list_tools", None)
            assert [each["name"] for each in listed_["tools"]] == ["files/read", "write"]
            assert (called["type"], called["name"]) == ("mcp_call", "files/read")
            assert (called["arguments"], called["output"]) == ('{"path": "x"}', "ok")
            assert (asks["type"], asks["name"]) == ("mcp_approval_request", "write")
            assert fake.count("tools/call") == 1
            said = {"approval_request_id": asks["id"], "approve": True}
            answer = await server.ask(
                input=[{"type": "mcp_approval_response", **said}],
                tools=[tool],
                previous_response_id=body["id"],
            )
            called, _ = answer.json["output"]
            assert (called["name"], called["approval_request_id"]) == ("write", asks["id"])
            assert called["status"] == "completed"
            answer = await server.ask(
                stream=True, tools=[tool], previous_response_id=answer.json["id"]
            )
            events = parse(answer.body)[0]
            check_order(events)
            assert not [p for event in events for p in (*problems(event), *sdk_problems(event))]
            called, _ = events[-1]["response"]["output"]
            assert (called["status"], called["output"]) == ("failed", None)
            assert called["error"]["code"] == -32602
            assert "response.mcp_call.failed" in [event["type"] for event in events]
            assert fake.count("tools/list") == 1
            assert b"secret" not in answer.body
            choice = {"type": "mcp", "server_label": "s", "name": "files/read"}
            await server.ask(tools=[tool], tool_choice=choice)
            assert model.asked[-1].tool_choice == NamedTool(read, namespace="s")
            (space,) = model.asked[0].tools
            assert (space.name, [each.name for each in space.tools]) == ("s", [read, write])
    sent = {headers["authorization"] for _, headers, _ in fake.asked}
    assert sent == {"Bearer secret"}


async def test_a_server_that_is_down_leaves_an_answer_without_its_tools() -> None:
    async with storing(HostedTools(Model("Sorry."), [MCP([NOWHERE])])) as server:
        answer = await server.ask(stream=True, tools=[asked()])
    events = parse(answer.body)[0]
    check_order(events)
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]
    (item, said) = events[-1]["response"]["output"]
    assert "the MCP server 's'" in item["error"]
    assert said["content"][0]["text"] == "Sorry."
