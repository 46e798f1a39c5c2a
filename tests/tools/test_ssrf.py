"""Pages that must not be opened: addresses inside, however they are spelt or come to be."""

from __future__ import annotations

import pytest

from dragoman.net.url import parse_url
from dragoman.tools.web import Web
from tests.net.peer import plain
from tests.tools.browsing import Model, Site, resolving

INSIDE = "the secret of the inside"
HOSTS = [
    # Loopback, and what stands for it.
    *("127.0.0.1", "127.1", "127.0.1", "127.255.255.254", "localhost", "LOCALHOST", "localhost."),
    *("0.0.0.0", "0", "00000000", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]"),
    *("[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]"),
    *("[2002:7f00:1::]", "[2001:0:7f00:1::]", "[::ffff:0:127.0.0.1]"),
    # Other spellings of numbers.
    *("2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.0x0.0.01"),
    *("0x7f.1", "0X7F000001", "127.0.0.1.", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "127。0。0。1"),
    # Private and shared networks, link-local addresses, metadata services.
    *("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "0xa9fea9fe"),
    *("2852039166", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192", "[fd00:ec2::254]", "[fe80::1]"),
    *("224.0.0.1", "255.255.255.255", "198.18.0.1", "240.0.0.1", "[ff02::1]", "[fc00::1]"),
]
TARGETS = [
    # Other schemes, and addresses that only look like others.
    *("file:///etc/passwd", "FILE:///etc/passwd", "file://localhost/etc/passwd", "ftp://{here}/"),
    *("gopher://{here}/_GET", "data:text/html,{secret}", "dict://{here}/", "ldap://{here}/"),
    *("jar:http://{here}!/", "javascript:fetch('http://{here}')", "view-source:file:///etc/passwd"),
    *("view-source:http://{here}/inside", "ws://{here}/", "unix:///run/x", "netdoc:///etc/passwd"),
    *("http:///{here}/", "http:{here}/", "//{here}/", "http:\\\\{here}\\", "about:blank", "blob:x"),
    # Credentials, and hosts hidden behind them.
    *("http://public.test@{here}/inside", "http://public.test:80@{here}/", "http://:@{here}/"),
    *("http://a:b@public.test/", "http://public.test\\@{here}/", "http://public.test%40{here}/"),
    *("http://{here}#@public.test/", "http://{here}?@public.test/", "http://{here}/@public.test"),
    # Hosts with characters that parsers disagree on.
    *("http://127.0.0.1%2f@public.test/", "http://127.0.0.1%00.public.test/", "http://[::1%25lo]/"),
    *("http://127.0.0.1\t.public.test/", "http://public.test\r\nHost: inside/", "http://[::1]x/"),
    *("http://%31%32%37.0.0.1:{port}/inside", "http://127.0.0.1;.public.test/", "http://{here} /"),
    # Ports of other services, and none at all.
    *("http://public.test:22/", "http://public.test:25/", "https://public.test:993/"),
    *("http://public.test:0/", "http://public.test:65536/", "http://public.test:x/"),
    "http://public.test:-1/",
]
ADDRESSES = {
    "loopback": ["127.0.0.1"],
    "loopback, version 6": ["::1"],
    "mapped": ["::ffff:127.0.0.1"],
    "translated": ["64:ff9b::a9fe:a9fe"],
    "metadata": ["169.254.169.254"],
    "one of two": ["93.184.216.34", "127.0.0.1"],
    "the first of two": ["127.0.0.1", "93.184.216.34"],
    "a zone": ["fe80::1%eth0"],
    "nonsense": ["nonsense"],
    "none": [],
}
REDIRECTS = [
    *("http://127.0.0.1:{port}/inside", "http://localhost:{port}/inside", "//127.1:{port}/inside"),
    *("http://[::ffff:127.0.0.1]:{port}/inside", "http://2130706433:{port}/inside"),
    *("http://169.254.169.254/latest/meta-data/", "http://inside.test:{port}/inside"),
    *("file:///etc/passwd", "FILE:/etc/passwd", "gopher://127.0.0.1:{port}/_x", "ftp://127.0.0.1/"),
    *("data:text/html,{secret}", "javascript:x", "http://u:p@public.test:{port}/inside"),
    *("http://public.test@127.0.0.1:{port}/inside", "http://public.test:25/", "http://[::1%lo]/"),
    *("\\\\127.0.0.1:{port}\\inside", "http:\\\\127.0.0.1\\", "https:127.0.0.1:{port}/inside"),
    "http://public.test:{port}/step",
]


@pytest.fixture
async def site(monkeypatch):
    """A site inside, which the search service is at, but no page may be opened of. Names of
    `public.test` have an address outside, which leads here all the same."""
    async with Site({"/inside": INSIDE, "/": INSIDE}) as site:
        yield site


@pytest.fixture
async def model(site):
    tool = Web.configured(f"searxng:{site.base}", {})
    yield await Model(tool).begin()
    await tool.close()


def filled(text: str, site: Site) -> str:
    for name, value in (
        ("here", f"127.0.0.1:{site.port}"),
        ("port", site.port),
        ("secret", INSIDE),
    ):
        text = text.replace(f"{{{name}}}", str(value))
    return text


async def check(model: Model, site: Site, url: str) -> str:
    """The page is not opened, in any of the ways there are; the words for the model."""
    site.found = [{"url": url, "title": "x", "content": "y"}]
    listed = await model.shown("search", query="x")
    words = await model.refused("open", id=url)
    if "【0†" in listed:
        await model.refused("open", id=0)
    action = {"type": "open_page", "url": url}
    model.items = [type(model.items[0])("responses", "web_search_call", {"action": action})]
    await model.begin()
    await model.refused("find", pattern="secret")
    assert {path.partition("?")[0] for path in site.paths} == {"/search"}, url
    assert INSIDE not in words
    return words


async def test_r4_w27_addresses_inside_are_not_called(model, site) -> None:
    for host in HOSTS:
        words = await check(model, site, f"http://{host}:{site.port}/inside")
        assert words.startswith(("The page could not be opened", "This is no address of a web"))


async def test_r4_w27_what_is_no_page_is_not_called(model, site, monkeypatch) -> None:
    asked = resolving(monkeypatch, {"public.test": [["127.0.0.1"]]})
    for url in TARGETS:
        await check(model, site, filled(url, site))
    assert not asked


@pytest.mark.parametrize("addresses", ADDRESSES.values(), ids=ADDRESSES)
async def test_r4_w27_names_that_lead_inside_are_not_called(
    model, site, monkeypatch, addresses
) -> None:
    resolving(monkeypatch, {"inside.test": [addresses]})
    words = await check(model, site, f"http://inside.test:{site.port}/inside")
    assert "inside.test is at an address that may not be called" in words


async def outside(site: Site, monkeypatch) -> Model:
    """A model for which `public.test` is outside: the guard lets its address pass, which is ours,
    and no other one of ours."""
    table = {"public.test": [["127.0.0.9"]], "inside.test": [["127.0.0.1"]]}
    resolving(monkeypatch, table)
    site._server.close()
    await site._server.wait_closed()
    site._host = "0.0.0.0"
    await site.__aenter__()
    tool = Web.configured(
        f"searxng:{site.base.replace('0.0.0.0', '127.0.0.1')}", {}, allow=["127.0.0.9"]
    )
    return await Model(tool).begin()


@pytest.mark.parametrize(
    ("place", "status"),
    [
        *((place, "302 Found") for place in REDIRECTS),
        *((REDIRECTS[0], f"{status} Moved") for status in (301, 303, 307, 308)),
    ],
)
async def test_r4_w27_redirects_inside_are_not_followed(site, monkeypatch, place, status) -> None:
    model = await outside(site, monkeypatch)
    site.pages["/go"] = plain(b"", f"Location: {filled(place, site)}", status=status)
    site.pages["/step"] = plain(b"", f"Location: {filled(REDIRECTS[0], site)}", status=status)
    words = await model.refused("open", id=f"http://public.test:{site.port}/go")
    assert INSIDE not in words
    assert not {"/inside", "/latest/meta-data/"} & set(site.paths)
    assert "/go" in site.paths  # it was asked, and what it said was not done
    await model.tool.close()


async def test_a_name_whose_address_changes_gains_nothing(site, monkeypatch) -> None:
    """The address that was judged is the one that is called; every page is judged anew."""
    model = await outside(site, monkeypatch)
    asked = resolving(monkeypatch, {"public.test": [["127.0.0.9"], ["127.0.0.1"]]})
    url = f"http://public.test:{site.port}/inside"
    assert INSIDE in await model.shown("open", id=url)
    assert len(asked) == 1
    for given in ({"id": url}, {"view_source": True}):
        assert "may not be called" in await model.refused("open", **given)
    assert site.paths == ["/inside"]
    await model.tool.close()


async def test_a_redirect_to_a_name_is_judged_at_each_step(site, monkeypatch) -> None:
    model = await outside(site, monkeypatch)
    asked = resolving(monkeypatch, {"public.test": [["127.0.0.9"], ["127.0.0.1"]]})
    site.pages["/go"] = plain(b"", "Location: /inside", status="302 x")
    words = await model.refused("open", id=f"http://public.test:{site.port}/go")
    assert "may not be called" in words
    assert (site.paths, len(asked)) == (["/go"], 2)
    await model.tool.close()


def test_there_are_enough_of_them() -> None:
    forms = {*HOSTS, *TARGETS, *ADDRESSES, *REDIRECTS}
    assert len(forms) >= 100
    assert parse_url("http://①②⑦.⓪.⓪.①/").host == "127.0.0.1"  # what it is judged by
