"""The browser of the hosted tool: what it shows, its cursors, its state over answers, citations."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.core.item import Annotation, FunctionCall, Unknown
from dragoman.formats.citations import Citations
from dragoman.tools import page as page_module
from dragoman.tools import search as search_module
from dragoman.tools import web as web_module
from dragoman.tools.run import Context, Runner
from dragoman.tools.web import KIND, SIZES, Browser, options_of
from tests.net.peer import plain
from tests.tools.browsing import STORY, Model, Site, resolving, web


@pytest.fixture
async def site():
    async with Site() as site:
        yield site


@pytest.fixture
async def tool(site):
    tool = web(site)
    yield tool
    await tool.close()


@pytest.fixture
async def model(tool):
    return await Model(tool).begin()


# ---- what it shows ---------------------------------------------------------------------------


async def test_r4_50_a_search_lists_links_with_their_domains(model, site) -> None:
    site.found = [
        {
            "url": "http://ex.test/a",
            "title": "The 【long】 story",
            "content": "A tale\n of " + "words " * 30,
        },
        {"url": "http://ex.test/b"},
    ]
    shown = await model.shown("search", query="a  long story", topn=3)
    assert shown == (
        "[0] a long story\n**viewing lines [0 - 3] of 3**\n\n"
        f"L0: * 【0†The 〖long〗 story†ex.test】 A tale of{' words' * 6}\n"
        f"L1:{' words' * 13}\nL2:{' words' * 11}\n"
        "L3: * 【1†ex.test†ex.test】"
    )
    assert site.queries == [{"q": ["a long story"], "format": ["json"]}]
    assert model.action == {
        "type": "search",
        "query": "a  long story",
        "queries": ["a  long story"],
        "sources": [{"type": "url", "url": f"http://ex.test/{n}"} for n in "ab"],
    }


async def test_r4_53_a_page_is_shown_by_lines_with_numbered_links(model, site) -> None:
    shown = await model.shown("open", id=f"{site.base}/")
    assert shown.startswith(
        f"[0] A long story ({site.base}/)\n**viewing lines [0 - 182] of 402**\n\n"
        "L0: # Story\nL1: \n"
        "L2: See 【0†the second page】 and 【1†another site†other.test】.\nL3: \n"
        "L4: Paragraph 0 of the long story.\n"
    )
    assert len(shown) < SIZES["medium"][1] + 200
    assert model.action == {"type": "open_page", "url": f"{site.base}/"}


async def test_r4_51_r4_53_a_page_is_scrolled_without_being_fetched_again(model, site) -> None:
    await model.shown("open", id=f"{site.base}/")
    assert "[1] A long story" in (shown := await model.shown("open", loc=400))
    assert shown.endswith(
        "**viewing lines [400 - 402] of 402**\n\n"
        "L400: Paragraph 198 of the long story.\nL401: \nL402: Paragraph 199 of the long story."
    )
    shown = await model.shown("open", cursor=0, loc=4, num_lines=2)
    assert shown.endswith("[4 - 5] of 402**\n\nL4: Paragraph 0 of the long story.\nL5: ")
    assert await model.refused("open", loc=403) == "There is no line 403. The lines are 0 to 402."
    assert "[3] " in await model.shown("open", loc=0)  # what was not shown has no cursor
    assert site.paths == ["/"]


async def test_pages_are_searched_and_long_conversations_read_in_threads(
    tool, site, monkeypatch
) -> None:
    threads: list[int] = []

    def recorded(work: Any) -> Any:
        def run(*given: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*given)

        return run

    for module in (page_module, web_module):
        monkeypatch.setattr(module, "flat", recorded(module.flat))
    monkeypatch.setattr(Browser, "_restore", recorded(Browser._restore))
    model = await Model(tool, caller=Caller(size=1)).begin()
    await model.shown("search", query="x")
    site.found = [site.result("/", content="Paragraph 7")]
    await model.shown("search", query="x")
    await model.shown("open", id=0)
    await model.shown("find", pattern="paragraph 9")
    model.options = {"external_web_access": False}
    await model.begin()
    await model.shown("search", query="story")
    assert len(threads) == 2 + len(model.items)  # those that were restored, and not the last
    assert threading.get_ident() not in threads


async def test_many_lines_are_shown_where_they_are_asked_for_up_to_a_limit(model, site) -> None:
    site.pages["/many"] = "<p>" + "word " * 40_000
    await model.shown("open", id=f"{site.base}/many")
    assert len(await model.shown("open", loc=0, num_lines=100)) > 2 * SIZES["medium"][1]
    assert len(await model.shown("open", loc=0, num_lines=100_000)) < web_module.MOST_SHOWN + 300


async def test_r4_51_links_are_opened_by_their_number(model, site) -> None:
    site.found = [site.result("/second"), site.result("/")]
    await model.shown("search", query="x")
    assert (await model.shown("open", id=1)).startswith("[1] A long story")
    assert (await model.shown("open", id="0")).splitlines()[3] == "L0: Second page"
    assert model.action["url"] == f"{site.base}/second"
    assert (await model.shown("open", id=0, cursor=0)).startswith("[3] ")
    assert site.paths.count("/second") == 1  # it was at hand
    assert "no link 7" in await model.refused("open", id=7, cursor=1)
    assert model.items[-1].value == {
        "status": "failed",
        "action": {"type": "open_page", "url": None},
    }


async def test_r4_51_an_address_is_fetched_anew(model, site) -> None:
    for _ in "ab":
        await model.shown("open", id=f"{site.base}/second")
    assert site.paths == ["/second", "/second"]


async def test_r4_51_a_result_is_opened_at_the_words_that_were_quoted(model, site) -> None:
    words = "…Paragraph 150 of the <strong>long</strong> story. … And more"
    site.found = [site.result("/", content=words), site.result("/", content="not in it")]
    await model.shown("search", query="x")
    assert "[300 - " in await model.shown("open", id=0)
    assert "[0 - " in await model.shown("open", id=1, cursor=0)
    assert "[7 - " in await model.shown("open", id=0, cursor=0, loc=7)


async def test_the_source_of_a_page_can_be_shown(model, site) -> None:
    shown = await model.shown("open", id=f"{site.base}/second", view_source=True)
    assert shown.endswith(
        f"(view-source:{site.base}/second)\n**viewing lines [0 - 0] of 0**\n\nL0: <p>Second page"
    )
    assert "L0: Second page" in await model.shown("open", id=f"{site.base}/second")
    assert "L0: <p>Second page" in await model.shown("open", view_source=True)
    assert "L0: <p>Second" in await model.shown("open", id=f"view-source:{site.base}/second")
    assert model.action["url"] == f"{site.base}/second"


async def test_r4_52_find_shows_each_place_and_leads_to_it(model, site) -> None:
    await model.shown("open", id=f"{site.base}/")
    shown = await model.shown("find", pattern="OF the LONG story")
    assert shown.startswith(
        "[1] Find results for text: `OF the LONG story` in `A long story` "
        f"({site.base}//find?pattern=OF the LONG story)\n"
    )
    assert "L0: # 【0†match at L4】\nL1: Paragraph 0 of the long story.\nL2: \n" in shown
    assert model.action == {
        "type": "find_in_page",
        "url": f"{site.base}/",
        "pattern": "OF the LONG story",
    }
    whole = await model.shown("open", cursor=1, loc=0, num_lines=1000)
    assert len(re.findall("match at", whole)) == 50
    assert "[92 - " in await model.shown("open", id=23, cursor=1)  # line 96, and some before it
    assert "Only a page" in await model.refused("find", pattern="x", cursor=1)
    assert "fill in `pattern`" in await model.refused("find", pattern=" ", cursor=0)
    assert "No `find` results for pattern: `nowhere`" in await model.shown(
        "find", pattern="nowhere"
    )


async def test_r4_52_find_sees_through_links_and_the_ends_of_lines(model, site) -> None:
    site.pages["/w"] = "<p>" + "word " * 14 + "<a href='/second'>over the end</a> of it"
    await model.shown("open", id=f"{site.base}/w")
    for pattern in ("word over the end of it", "the end of"):
        assert "match at L" in await model.shown("find", pattern=pattern, cursor=0)


async def test_calls_of_one_round_have_cursors_in_their_order(tool, site) -> None:
    gate = asyncio.Event()
    model = await Model(tool).begin()
    real = tool.fetcher.fetch

    async def slow(*asked):
        url = asked[0]
        if url.endswith("/second"):
            await gate.wait()
        elif url.endswith("/"):
            gate.set()  # the second one is fetched first
        return await real(*asked)

    tool.fetcher.fetch = slow
    runner = Runner(model.browser.tools)
    texts = [
        {"id": f"{site.base}/second"},
        {"id": "nonsense:"},
        {"id": f"{site.base}/"},
        {"loc": 4},
    ]
    calls = [FunctionCall(f"c{n}", "open", json.dumps(each)) for n, each in enumerate(texts)]
    results = await asyncio.gather(*(runner.run(each, Context(each)) for each in calls))
    assert [each.output.output[:4] for each in results] == ["[0] ", "This", "[1] ", "[2] "]
    assert "[4 - " in results[3].output.output


# ---- what a model writes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "words", "action"),
    [
        ("search", "{", "The arguments of 'search' must be JSON.", {"query": "{"}),
        ("search", "[1]", "must be a JSON object", {"query": "[1]"}),
        ("search", "[" * 100_000, "must be JSON", None),
        ("search", "", "missing required field `query`", {"query": ""}),
        ("search", '{"query": 1}', "Expected `str`, got `int` - at `$.query`", {"query": "1"}),
        ("search", '{"query": " "}', "fill in `query`", {"query": " "}),
        ("search", '{"query": "x", "topn": "many"}', "at `$.topn`", {"query": "x"}),
        ("open", "", "Nothing was opened yet", {"url": None}),
        ("open", '{"id": []}', "at `$.id`", {"url": None}),
        ("open", '{"id": 3}', "Nothing was opened yet", {"url": None}),
        ("open", '{"cursor": 5}', "Nothing was opened yet", {"url": None}),
        (
            "open",
            '{"id": "about:blank"}',
            "must begin with http:// or https://",
            {"url": "about:blank"},
        ),
        ("find", '{"pattern": "x"}', "Nothing was opened yet", {"url": "", "pattern": "x"}),
        ("find", "nonsense", "must be JSON", {"url": "", "pattern": "nonsense"}),
    ],
)
async def test_r4_54_nonsense_is_an_error_for_the_model_and_an_item(
    model, name, text, words, action
) -> None:
    assert words in await model.refused(name, text)
    assert model.items[-1].value["status"] == "failed"
    for key, value in (action or {}).items():
        assert model.action[key] == value


async def test_cursors_that_do_not_exist_are_named(model, site) -> None:
    await model.shown("open", id=f"{site.base}/")
    for name, given in (("open", {"cursor": 4}), ("find", {"cursor": 4, "pattern": "x"})):
        assert await model.refused(name, **given) == "There is no cursor 4. The latest is 0."


async def test_r4_48_numbers_in_quotes_and_fields_of_others_are_no_nonsense(model, site) -> None:
    await model.shown("search", '{"query": "x", "topn": "3", "source": "web", "top_n": null}')
    text = '{"id": 0.0, "cursor": "0", "loc": 4.0, "num_lines": "1", "view_source": "false"}'
    assert "[4 - 4] of 402" in await model.shown("open", text)
    assert "[0 - 0] of 402" in await model.shown("open", '{"id": "-1", "loc": 0, "num_lines": 1}')
    assert "[0 - 0] of 402" in await model.shown("open", '{"id": "", "loc": 0, "num_lines": 1}')


async def test_a_host_without_a_scheme_is_an_address(model, site, monkeypatch) -> None:
    resolving(monkeypatch, {"www.example.test": [["192.0.2.1"]]})
    words = await model.refused("open", id="www.example.test/x?y")
    assert "www.example.test is at an address that may not be called" in words
    assert model.action["url"] == "https://www.example.test/x?y"


# ---- over answers ----------------------------------------------------------------------------


async def test_r4_49_r4_w26_cursors_hold_in_later_answers_and_after_a_restart(model, site) -> None:
    site.found = [site.result("/"), site.result("/second")]
    await model.shown("search", query="x")
    await model.shown("open", id=0)
    await model.refused("open", id=99)
    found = await model.shown("find", pattern="paragraph 7")
    await model.shown("open", id=f"{site.base}/second", view_source=True)
    before = site.paths
    model.tool = web(site)  # another process
    await model.begin()
    assert site.paths == before  # nothing is fetched before it is needed
    assert "L0: * 【0†" in await model.shown("open", cursor=0)
    assert "Second page" in await model.shown("open", id=1, cursor=0)
    assert "[4 - 4] of 402" in await model.shown("open", cursor=1, loc=4, num_lines=1)
    assert (await model.shown("open", cursor=2)).partition("\n")[2] == found.partition("\n")[2]
    assert "[14 - " in await model.shown("open", id=0, cursor=2)
    assert "L0: <p>Second page" in await model.shown("open", cursor=3)
    assert "[10] " in await model.shown("open", id=0, cursor=1)
    assert site.queries == [{"q": ["x"], "format": ["json"]}]
    citations = Citations([model.browser.cited])
    link = f" ([{site.base[7:]}]({site.base}/)) "
    assert citations.feed("【1†L4】【2†L0】【0†L0】") == [
        link,
        Annotation("url_citation", 0, len(link), f"{site.base}/", "A long story"),
        link,
        Annotation(
            "url_citation",
            len(link),
            2 * len(link),
            f"{site.base}/",
            "Find results for text: `paragraph 7` in `A long story`",
        ),
        "【0†L0】",
    ]
    await model.tool.close()


async def test_items_that_a_client_sent_back_have_cursors_too(model, site) -> None:
    """Without what we record: a client that stores its own conversation has actions only."""
    await model.shown("search", query="x")
    await model.shown("open", id=f"{site.base}/second")
    await model.shown("find", pattern="second")
    model.items = [replace(item, extra=None) for item in model.items]
    del model.items[0].value["action"]["sources"]
    await model.begin()
    assert "no longer known" in await model.refused("open", cursor=0)
    assert "no link 0" in await model.refused("open", id=0, cursor=0)
    assert "[3] " in await model.shown("open", cursor=1)
    assert "# 【0†match at L0】" in await model.shown("open", cursor=2)


async def test_records_alone_are_enough_for_pages(model, site) -> None:
    """As clients of the Messages protocol bring them back."""
    site.pages["/ä b"] = "x"
    await model.shown("search", query="x")
    await model.shown("open", id=f"{site.base}/")
    await model.shown("find", pattern="paragraph 7")
    await model.shown("open", id=f"{site.base}/second", view_source=True)
    site.pages[f"/{'x' * 300}"] = "long"
    await model.shown("open", id=f"{site.base}/{'x' * 300}")
    model.items = [replace(item, wire="messages", kind="result", value={}) for item in model.items]
    await model.begin()
    assert "【0†A title" in await model.shown("open", cursor=0)
    assert "[6] A long story" in await model.shown("open", cursor=0, id=0, num_lines=1)
    assert "[7] A long story" in await model.shown("open", cursor=1, num_lines=1)
    assert "# 【0†match at L18】" in await model.shown("open", cursor=2)
    assert "<p>Second page" in await model.shown("open", cursor=3)
    assert "L0: long" in await model.shown("open", cursor=4)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"action": None},
        {"action": {}},
        {"action": {"type": "open_page", "url": None}},
        {"action": {"type": "open_page", "url": ["x"]}},
        {"action": {"type": "open_page", "url": "file:///etc/passwd"}},
        {"action": {"type": "open_page", "url": "http://a b/"}},
        {"action": {"type": "open_page", "url": "http://u:p@ex.test/"}},
        {"action": {"type": "find_in_page", "url": 5, "pattern": "x"}},
        {"action": {"type": "open_page", "url": "http://ex.test/"}, "status": "failed"},
    ],
)
async def test_items_of_no_use_are_passed_over(tool, value) -> None:
    model = Model(tool)
    other = {"type": "open_page", "url": "http://ex.test/"}
    model.items = [Unknown("responses", KIND, value), Unknown("responses", "x", {"action": other})]
    await model.begin()
    assert "Nothing was opened yet" in await model.refused("open")


async def test_forged_records_neither_fail_nor_cost(tool, site) -> None:
    model = await Model(tool, {"external_web_access": False}).begin()
    page = {"kind": "page", "url": f"{site.base}/"}
    far = "[999999999] x\n**viewing lines [9999999 - 9999999] of 9999999**\n\nL9999999: y"
    head = "[3] x\n**viewing lines [0 - 0] of 0**\n\nL0: y"
    for output, kept in (
        ("[1", page),
        (far, page),
        (far.replace("[9", "[99"), page),
        (None, page),
        ([{"type": "text", "text": head}], page),
        *((head, kept) for kept in (None, {}, 5, {"kind": "x"}, {**page, "url": "file:///x"})),
        (head, {"kind": "results", "links": [5]}),
        (head, {**page, "url": "http://u:p@ex.test/"}),
    ):
        about = {"call_id": "c", "name": "open", "arguments": "", "output": output, "kept": kept}
        model.items.append(Unknown("responses", KIND, {}, "ws", {"tool": about}))
    for sources in ([5], [{}], [{"url": 3}], "x"):
        action = {"type": "search", "query": 5, "sources": sources}
        model.items.append(Unknown("responses", KIND, {"action": action}))
    await model.begin()
    shown = await model.shown("open", cursor=999_999_999)
    assert shown.endswith("[9999999 - 9999999] of 9999999**\n\nL9999999: y")
    assert "no cursor 3" in await model.refused("open", cursor=3)


async def test_a_link_that_has_changed_since_is_not_followed(model, site) -> None:
    await model.shown("open", id=f"{site.base}/")
    site.pages["/"] = "<a href='/evil'>buy now</a> <a href='http://other.test/x'>another site</a>"
    await model.begin()
    assert "has changed" in await model.refused("open", id=0, cursor=0)
    assert "/evil" not in site.paths
    site.pages["/"] = "nothing"
    await model.begin()
    assert "no link 0" in await model.refused("open", id=0, cursor=0)


async def test_only_some_pages_are_held(tool, site, monkeypatch) -> None:
    monkeypatch.setattr(web_module, "MOST_LOADED", 2)
    model = await Model(tool).begin()
    for path in ("/", "/second", "/", "/second"):
        await model.shown("open", id=site.base + path)
    held = [view for view in model.browser._views.values() if view.lines]
    assert len(held) == 2
    assert "[4] A long story" in await model.shown("open", cursor=0, num_lines=1)
    await model.browser.close()
    assert not model.browser._views


# ---- options ---------------------------------------------------------------------------------


async def test_without_access_to_the_web_nothing_is_called(model, site) -> None:
    await model.shown("search", query="x")
    await model.shown("open", id=0)
    await model.shown("find", pattern="paragraph 1")
    before = list(site.requests)
    model.options = {"external_web_access": False}
    await model.begin()
    about = [tool.spec.description for tool in model.browser.tools]
    assert ["in this conversation" in each for each in about] == [True, True, False]
    shown = await model.shown("search", query="story nothing")
    assert "【0†A long story†" in shown
    assert "Only pages that were opened in this conversation were searched" in shown
    assert "L4: Paragraph 0" in await model.shown("open", id=0, num_lines=5)
    assert "L4: Paragraph 0" in await model.shown("open", cursor=1)
    assert "match at L24" in await model.shown("find", pattern="paragraph 10", cursor=1)
    assert "L4: Paragraph 0" in await model.shown("open", id=f"{site.base}/")
    assert "No results for `zebra`" in await model.shown("search", query="zebra")
    for given in (
        {"id": f"{site.base}/second"},
        {"id": 0, "cursor": 1},
        {"id": f"{site.base}/", "view_source": True},
    ):
        words = await model.refused("open", **given)
        assert words.startswith(("That page is not at hand", "There is no link"))
    assert site.requests == before


async def test_domains_limit_searches_pages_and_redirects(tool, site, monkeypatch) -> None:
    names = ("good.test", "sub.good.test", "bad.test", "notgood.test")
    resolving(monkeypatch, {name: [["127.0.0.1"]] for name in names})
    model = await Model(tool, {"filters": {"allowed_domains": ["Good.test"]}}).begin()
    port = site.port
    site.found = [{"url": f"http://{name}:{port}/", "title": name} for name in names]
    shown = await model.shown("search", query="x")
    assert re.findall(r"【\d†(.*?)†", shown) == ["good.test", "sub.good.test"]
    assert site.queries == [{"q": ["x site:good.test"], "format": ["json"]}]
    assert "Only pages of good.test" in model.browser.tools[0].spec.description
    await model.shown("open", id=f"http://sub.good.test:{port}/")
    for name in names[2:]:
        words = await model.refused("open", id=f"http://{name}:{port}/")
        assert words == f"Pages of {name} may not be opened here."
    site.pages["/go"] = plain(b"", f"Location: http://bad.test:{port}/", status="302 Found")
    assert "bad.test may not" in await model.refused("open", id=f"http://good.test:{port}/go")
    assert site.paths.count("/") == 1


async def test_options_of_other_protocols(tool, site, monkeypatch) -> None:
    resolving(monkeypatch, {f"{name}.test": [["127.0.0.1"]] for name in ("a", "b.a", "c")})
    asked = {
        "allowed_domains": ["a.test"],
        "blocked_domains": ["b.a.test"],
        "max_uses": 1,
        "user_location": {"type": "approximate", "approximate": {"city": "Rome"}},
    }
    model = await Model(tool, asked).begin()
    about = model.browser.tools[0].spec.description
    assert "near Rome" in about
    assert "Pages of b.a.test are not." in about
    site.found = [{"url": f"http://{name}.test:{site.port}/"} for name in ("a", "b.a", "c")]
    assert (await model.shown("search", query="x")).count("【") == 1
    await model.shown("open", id=0)
    for name in ("b.a", "c"):
        words = await model.refused("open", id=f"http://{name}.test:{site.port}/")
        assert words == f"Pages of {name}.test may not be opened here."
    assert "No more searches" in await model.refused("search", query="y")
    await model.begin()
    await model.shown("search", query="x")


async def test_sizes_and_places(tool, site) -> None:
    site.found = [site.result(f"/{n}", content="x" * 2000) for n in range(40)]
    sizes = []
    for size in SIZES:
        where = {"type": "approximate", "country": "de", "city": "Bonn", "timezone": None}
        model = await Model(tool, {"search_context_size": size, "user_location": where}).begin()
        shown = await model.shown("search", query="x", topn=100)
        assert shown.count("【") == SIZES[size][0]
        assert "The user is near Bonn, DE." in model.browser.tools[0].spec.description
        sizes.append(len(await model.shown("open", id=f"{site.base}/")))
        assert len(await model.shown("search", query="x", topn=2)) < len(shown)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"filters": {"other": []}}, "filters.other", "not known here"),
        ({"filters": 5}, "filters", "must be an object"),
        ({"filters": {"allowed_domains": "x"}}, "filters.allowed_domains", "must be an array"),
        *(
            (
                {"filters": {"allowed_domains": ["a.test", each]}},
                "filters.allowed_domains[1]",
                "domain",
            )
            for each in ("http://x", "", "*.x", "a..b", "x:80", "\udcff", "a" * 64, "a." * 150)
        ),
        ({"filters": {"allowed_domains": ["x"] * 101}}, "filters.allowed_domains", "100 entries"),
        ({"blocked_domains": ["x/y"]}, "blocked_domains[0]", "without a path"),
        ({"max_uses": -1}, "max_uses", "at least 0"),
        ({"search_context_size": "huge"}, "search_context_size", "low, medium, high"),
        ({"external_web_access": "no"}, "external_web_access", "must be a boolean"),
        ({"user_location": {"type": "exact"}}, "user_location.type", "'exact'"),
        ({"user_location": {"country": "Germany"}}, "user_location.country", "of the form"),
        ({"user_location": {"city": "x" * 101}}, "user_location.city", "100 characters"),
        ({"search_content_types": ["image"]}, "search_content_types", "only text"),
    ],
)
def test_options_that_cannot_be_met_are_refused_by_name(asked, param, words) -> None:
    with pytest.raises(FaultError, match=re.escape(words)) as caught:
        options_of(asked)
    assert caught.value.fault.param == param
    assert caught.value.fault.blame == "client"


def test_options_that_mean_nothing_are_no_options() -> None:
    nulls = dict.fromkeys(
        ("external_web_access", "filters", "user_location", "search_context_size")
    )
    assert options_of({"type": "web_search", **nulls, "later": 1}) == options_of({})
    assert options_of({"filters": {"allowed_domains": None}}) == options_of({})
    assert options_of({"search_content_types": ["text", "image"]}) == options_of({})
    assert options_of({"filters": {"allowed_domains": ["Bücher.test."]}}).domains == (
        "xn--bcher-kva.test",
    )


# ---- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words", "logged"),
    [
        (plain(b"", status="500 No"), "does not answer", "it answered with status 500"),
        (plain(b"", status="403 No"), "does not answer", "settings.yml"),
        (plain(b"", status="401 No"), "does not answer", "it refused the key"),
        (plain(b"", status="429 No"), "too many searches", "there were too many requests"),
        (plain(b"", "Location: /", status="302 Found"), "does not answer", "status 302"),
        (plain(b"<html>"), "does not answer", "no JSON"),
        (plain(b"[" * 40_000), "does not answer", "no JSON"),
        (plain(b'{"\xff": 1}'), "does not answer", "no JSON"),
        (
            plain(b" " * (search_module.MOST_ANSWER + 1)),
            "does not answer",
            "more than 2097152 bytes",
        ),
        (b"SSH-2.0\r\n\r\n", "does not answer", "the search service searxng failed"),
    ],
)
async def test_a_failed_search_is_reported_and_logged(
    model, site, caplog, answer, words, logged
) -> None:
    site.found = answer
    assert words in await model.refused("search", query="x")
    assert logged in caplog.text
    assert site.base not in model.items[-1].extra["tool"]["output"]
    assert "L0: No results for `x`." in await _nothing(model, site)


async def _nothing(model, site) -> str:
    site.found = [5, {"url": 3}, {"url": "ftp://x"}, {"url": "http://u@ex.test/"}, {}]
    return await model.shown("search", query="x")


async def test_a_service_that_does_not_answer_is_given_up(model, site, monkeypatch, caplog) -> None:
    monkeypatch.setattr(search_module, "SECONDS", 0.01)
    site.found = b""
    assert "does not answer" in await model.refused("search", query="x")
    assert "within 0.01 seconds" in caplog.text
    site.pages["/slow"] = b""
    assert "within 0.01 seconds" in await model.refused("open", id=f"{site.base}/slow")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain(b"x", status="404 No"), "The page's server answered with status 404."),
        (plain(b"%PDF-1.7", "Content-Type: application/octet-stream"), "It is a PDF"),
        (plain(b"x", "Content-Type: application/pdf"), "It is a PDF"),
        (plain(b"x", "Content-Type: image/png"), "It is 'image/png', which cannot be read"),
        (plain(b"\x89PNG\0\0"), "It is no text"),
        (plain(b"", "Location: /loop", status="302 Found"), "redirects more than 5 times"),
        (plain(b"", "Location: http://[x", status="302 Found"), "could not be opened"),
        (plain(b"x", "Content-Encoding: br"), "unknown content coding"),
        (plain(b"x" * 99, "Content-Encoding: gzip"), "is not valid gzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", None),
        (b"nonsense\r\n\r\n", "could not be opened"),
    ],
)
async def test_a_page_that_cannot_be_shown_is_a_sentence(model, site, answer, words) -> None:
    site.pages["/loop"] = answer
    if words is None:
        async with Site({"/cut": answer}) as other:
            other._serve = _once(answer)
            assert "could not be opened" in await model.refused("open", id=f"{other.base}/cut")
    else:
        assert words in await model.refused("open", id=f"{site.base}/loop")
    assert not model.browser._views


def _once(answer: bytes):
    async def serve(line) -> None:
        await line.request()
        await line.write(answer)

    return serve


async def test_redirects_are_followed_and_cited_as_what_they_lead_to(model, site) -> None:
    site.pages["/go"] = plain(b"", "Location: /a/../again#x", status="301 Moved")
    site.pages["/again"] = plain(b"", "Location: fünf", status="307 Moved")
    site.pages["/f%C3%BCnf"] = "<p>Five"
    assert "L0: Five" in await model.shown("open", id=f"{site.base}/go")
    assert model.action["url"] == f"{site.base}/f%C3%BCnf"
    assert Citations([model.browser.cited]).feed("【0†L0】")[1].url == f"{site.base}/f%C3%BCnf"


async def test_what_is_too_long_is_cut(model, site) -> None:
    body = b"<p>start" + b"x" * search_module.MOST_BYTES
    site.pages["/long"] = plain(body, "Content-Type: text/html")
    shown = await model.shown("open", id=f"{site.base}/long")
    last = int(re.search(r"of (\d+)\*\*", shown)[1])
    assert "This is its beginning" in await model.shown("open", loc=last)


async def test_a_body_that_inflates_without_end_is_refused(model, site) -> None:
    bomb = gzip.compress(b"\0" * 2_000_000)
    site.pages["/bomb"] = plain(bomb, "Content-Encoding: gzip", "Content-Type: text/html")
    assert "more than 256 times larger" in await model.refused("open", id=f"{site.base}/bomb")


async def test_bytes_of_pages_count_in_the_memory_of_the_request(tool, site) -> None:
    counted: list[int] = []

    def count(size: int) -> None:
        counted.append(size)
        if sum(counted) > 5000:
            raise FaultError(Fault("overloaded", "There is no room for it."))

    model = await Model(tool, caller=Caller(count=count)).begin()
    await model.shown("open", id=f"{site.base}/second")
    assert "no room" in await model.refused("open", id=f"{site.base}/")
    assert counted == [len("<p>Second page"), len(STORY)]


async def test_a_cancelled_call_leaves_nothing(tool, site) -> None:
    site.pages["/slow"] = b""
    model = await Model(tool).begin()
    task = asyncio.ensure_future(model.call("open", id=f"{site.base}/slow"))
    await site.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await site.gone.wait()
    assert "[0] " in await model.shown("open", id=f"{site.base}/second")
