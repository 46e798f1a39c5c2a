"""Search services: how each is asked, what is read from it, and what cannot be configured."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time

import pytest

from dragoman.net.url import Proxies, parse_url
from dragoman.tools.run import ToolError
from dragoman.tools.search import (
    LONGEST_TEXT,
    Fetcher,
    Place,
    Query,
    Service,
    _words,
    find_service,
    target,
)
from dragoman.tools.web import Web
from tests.net.peer import Peer, answering, plain

KEYS = {f"{name}_API_KEY": f"{name.lower()}-key" for name in ("BRAVE", "TAVILY", "EXA")}
QUERY = Query("a query", 7, ("ex.test", "b.test"), Place("DE", "NRW", "Köln", "Europe/Berlin"))
OTHER = {"url": "https://other.test/"}
ROWS = [
    (
        "searxng",
        {"results": [{"url": "https://ex.test/1", "title": "One", "content": "Text"}, OTHER]},
        "GET /x/search?k=v&q=a+query+site%3Aex.test+OR+site%3Ab.test&format=json HTTP/1.1",
        {},
        None,
    ),
    (
        "brave",
        {
            "web": {
                "results": [
                    {
                        "url": "https://ex.test/1",
                        "title": "<strong>One</strong>",
                        "description": "Te<b>xt</b>",
                        "extra_snippets": [],
                    },
                    OTHER,
                ]
            }
        },
        "GET /x?q=a+query+site%3Aex.test+OR+site%3Ab.test&count=7&text_decorations=false HTTP/1.1",
        {
            "x-subscription-token": "brave-key",
            "x-loc-country": "DE",
            "x-loc-state-name": "NRW",
            "x-loc-timezone": "Europe/Berlin",
        },
        None,
    ),
    (
        "tavily",
        {"results": [{"url": "https://ex.test/1", "title": "One", "content": "Text"}, OTHER]},
        "POST /x HTTP/1.1",
        {"authorization": "Bearer tavily-key", "content-type": "application/json"},
        {"query": "a query", "max_results": 7, "include_domains": ["ex.test", "b.test"]},
    ),
    (
        "exa",
        {
            "results": [
                {"url": "https://ex.test/1", "title": "One", "highlights": ["Te", "xt"]},
                OTHER,
            ]
        },
        "POST /x HTTP/1.1",
        {"x-api-key": "exa-key", "content-type": "application/json"},
        {
            "query": "a query",
            "type": "auto",
            "numResults": 7,
            "contents": {"highlights": True},
            "includeDomains": ["ex.test", "b.test"],
            "userLocation": "DE",
        },
    ),
]


@pytest.mark.parametrize(
    ("name", "answer", "line", "headers", "body"), ROWS, ids=[r[0] for r in ROWS]
)
async def test_how_a_service_is_asked_and_read(name, answer, line, headers, body) -> None:
    async with Peer(answering(plain(json.dumps(answer).encode()))) as peer:
        query = "?k=v" if name == "searxng" else ""
        service = find_service(f"{name}:{peer.url}x{query}", KEYS)
        fetcher = Fetcher()
        found = await fetcher.search(service, QUERY, lambda host: host == "ex.test")
        await fetcher.close()
    assert [(each.url, each.title, each.text) for each in found] == [
        ("https://ex.test/1", "One", "Te … xt" if name == "exa" else "Text")
    ]
    head, _, sent = peer.requests[0].decode().partition("\r\n\r\n")
    first, *rest = head.split("\r\n")
    assert first == line
    given = dict(each.lower().split(": ", 1) if n else each for n, each in enumerate(rest, 1))
    assert {key: given.get(key) for key in headers} == {k: v.lower() for k, v in headers.items()}
    assert "x-loc-city" not in given  # no ASCII
    assert (json.loads(sent) if sent else None) == body


@pytest.mark.parametrize("name", ["searxng:http://x.test", "brave", "tavily", "exa"])
def test_little_is_asked_where_little_is_known(name) -> None:
    service = find_service(name, KEYS)
    asked = service.ask(service.base, service.key.reveal(), Query("x"))
    text = json.dumps([asked.url, asked.headers, asked.body]).lower()
    assert not any(word in text for word in ("domain", "location", "x-loc", "site%3a"))


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("searxng:http://127.0.0.1:8888/", "http://127.0.0.1:8888/"),
        ("brave", "https://api.search.brave.com/res/v1/web/search"),
        ("tavily", "https://api.tavily.com/search"),
        ("exa", "https://api.exa.ai/search"),
        ("exa:http://proxy.test/exa", "http://proxy.test/exa"),
    ],
)
def test_where_a_service_is(name, base) -> None:
    service = find_service(name, KEYS)
    assert (service.base, service.name) == (base, name.partition(":")[0])
    assert not any(key in repr(service) for key in KEYS.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "must be searxng:URL, brave, tavily or exa"),
        ("google", "'google' is no search service"),
        ("searxng", "needs an address: searxng:http://127.0.0.1:8888"),
        ("searxng:localhost:8888", "must begin with http:// or https://"),
        ("brave", "BRAVE_API_KEY"),
        ("tavily", "TAVILY_API_KEY"),
        ("exa", "EXA_API_KEY"),
    ],
)
@pytest.mark.parametrize("key", [None, " ", "a\nb", "ä"])
def test_invalid_configurations_are_errors(name, words, key) -> None:
    environ = {} if key is None else dict.fromkeys(KEYS, key)
    with pytest.raises(ValueError, match=words):
        Web.configured(name, environ)


def test_networks_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        Web.configured("searxng:http://x.test", {}, allow=["10.0.0.0/99"])


async def test_proxies_of_the_environment_are_used() -> None:
    async with Peer(answering(plain(b'{"results": []}'))) as peer:
        fetcher = Fetcher(proxies=Proxies(http=parse_url(peer.url)))
        assert (
            await fetcher.search(find_service("searxng:http://x.test", {}), Query("x"), bool) == []
        )
        await fetcher.close()
    assert peer.requests[0].startswith(b"GET http://x.test/search?q=x&format=json HTTP/1.1")


def test_domains_are_in_the_query_only_where_there_is_room() -> None:
    many = tuple(f"{'x' * 50}{n}.test" for n in range(9))
    assert Query("a", domains=many).with_sites == "a"
    assert Query("a", domains=many[:2]).with_sites == f"a site:{many[0]} OR site:{many[1]}"
    assert Query("a").with_sites == "a"


@pytest.mark.parametrize(
    "answer", [None, [], 5, {}, {"results": 5}, {"results": [5, None, {"url": 5}]}]
)
async def test_answers_of_any_shape_are_results_or_none(answer) -> None:
    async with Peer(answering(plain(json.dumps(answer).encode()))) as peer:
        fetcher = Fetcher()
        service: Service = find_service(f"searxng:{peer.url}", {})
        assert await fetcher.search(service, Query("x"), bool) == []
        await fetcher.close()


async def test_results_are_read_outside_of_the_event_loop() -> None:
    # A thousand hosts that are not ASCII hold a loop for most of a second.
    found = b'{"results": [{"url": "http://b\xc3\xbccher.test/", "title": "half \\ud83d"}]}'
    threads = list[int]()

    def may(host: str) -> bool:
        threads.append(threading.get_ident())
        return True

    async with Peer(answering(plain(found))) as peer:
        fetcher = Fetcher()
        (one,) = await fetcher.search(find_service(f"searxng:{peer.url}", {}), Query("x"), may)
        await fetcher.close()
    assert one.url == "http://bücher.test/"
    assert threads != [threading.get_ident()]


async def test_results_of_many_searches_are_read_one_after_the_other() -> None:
    # In the threads of the loop at once, they held up it, and all else that needs one.
    found = b'{"results": [{"url": "http://example.test/"}]}'
    working = list[int]()
    at_once = list[int]()

    def may(host: str) -> bool:
        working.append(1)
        time.sleep(0.02)
        at_once.append(len(working))
        working.pop()
        return True

    async with Peer(answering(*[plain(found)] * 4)) as peer:
        service = find_service(f"searxng:{peer.url}", {})
        fetcher = Fetcher()
        await asyncio.gather(*(fetcher.search(service, Query("x"), may) for _ in range(4)))
        await fetcher.close()
    assert at_once == [1, 1, 1, 1]


async def test_of_a_result_only_the_beginning_is_looked_at() -> None:
    # Its markup is removed in one go, for which others wait.
    assert 0 < len(_words("<b>a</b> " * 100_000)) < LONGEST_TEXT
    assert len(_words(["a"] * 100_000)) == LONGEST_TEXT - 1


async def test_what_is_read_for_nobody_any_more_leaves_no_error_behind() -> None:
    untold = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: untold.append(about))

    def fails() -> None:
        time.sleep(0.1)
        raise ValueError

    fetcher = Fetcher()
    reading = asyncio.create_task(fetcher.in_turn(fails, "t"))
    await asyncio.sleep(0.05)
    reading.cancel()
    await fetcher.in_turn(int, "t")
    gc.collect()
    assert untold == []
    await fetcher.close()


async def test_results_with_numbers_of_many_digits_are_no_answer() -> None:
    # To read them takes quadratic time.
    found = b'{"results": [%b]}' % b",".join([b"1." + b"9" * 700 + b"e-300"] * 400)
    async with Peer(answering(plain(found))) as peer:
        fetcher = Fetcher()
        with pytest.raises(ToolError, match="does not answer"):
            await fetcher.search(find_service(f"searxng:{peer.url}", {}), Query("x"), bool)
        await fetcher.close()


@pytest.mark.parametrize("port", [1, 22, 25, 79, 81, 110, 442, 444, 587, 1023])
def test_ports_of_other_services_are_refused(port) -> None:
    with pytest.raises(ToolError, match=f"Port {port} is not one of web pages"):
        target(f"http://ex.test:{port}/")


@pytest.mark.parametrize("port", [80, 443, 1024, 8080, 65535])
def test_other_ports_may_be_asked(port) -> None:
    assert target(f"http://ex.test:{port}/").port == port
