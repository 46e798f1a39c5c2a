"""URLs: what is read out of them and refused, and which proxy leads to them."""

import time

import pytest

from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import Proxies, check_authority, parse_url
from tests.cases import cases

CASES = cases(__file__, "urls")


@pytest.mark.parametrize(("text", "scheme", "host", "port", "authority", "target"), CASES["parsed"])
def test_a_url_is_taken_apart(text, scheme, host, port, authority, target) -> None:
    url = parse_url(text)
    assert (url.scheme, url.host, url.port, url.target) == (scheme, host, port, target)
    assert url.authority == authority or authority is None
    assert url.endpoint == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.parametrize(
    "text",
    [
        *CASES["invalid"],
        f"http://{'a' * 64}.example/",
        f"http://{'ü' * 64}.example/",
        f"http://{'a.' * 128}example/",
        "http://a.example/" + "x" * 8192,
    ],
)
def test_invalid_url_is_refused_without_being_quoted(text) -> None:
    with pytest.raises(InvalidUrlError) as caught:
        parse_url(text)
    assert not text or text not in str(caught.value)


def test_a_name_that_is_too_long_is_not_encoded() -> None:
    began = time.process_time()
    for name in ("".join(map(chr, range(0x4E00, 0x4E00 + 8000))), "a" + "\u0301\u0316" * 4_000):
        with pytest.raises(InvalidUrlError):
            parse_url(f"http://{name}/")
    assert time.process_time() - began < 1  # 9 s where it is encoded


@pytest.mark.parametrize("before", ["//", " http://", "http:/\t/", "/\r\n/"])
def test_a_long_host_that_is_not_ascii_is_found_as_urllib_finds_it(before) -> None:
    with pytest.raises(ValueError, match="too long a host"):
        check_authority(f"{before}{'ü' * 255}/")
    check_authority(f"{before}a/{'ü' * 255}")


def test_credentials_and_query_are_never_shown() -> None:
    url = parse_url("http://user:s%40cret@a.example/v1?key=hidden")
    assert url.credentials == "user:s@cret"
    assert url.authorization == "Basic dXNlcjpzQGNyZXQ="
    assert str(url) == "http://a.example/v1"
    assert repr(url) == "Url('http://a.example/v1')"
    assert parse_url("http://user@a.example/").credentials == "user:"
    assert parse_url("http://a.example/").authorization is None


def chosen(environ: dict[str, str], url: str) -> str | None:
    proxy = Proxies.from_environ(environ).choose(parse_url(url))
    return None if proxy is None else str(proxy)


@pytest.mark.parametrize(("environ", "http", "https"), CASES["variables"])
def test_proxy_of_a_scheme_comes_from_its_variable(environ, http, https) -> None:
    assert chosen(environ, "http://a.example/") == http
    assert chosen(environ, "https://a.example/") == https


@pytest.mark.parametrize(("entries", "url", "direct"), CASES["direct"])
def test_hosts_reached_directly(entries, url, direct) -> None:
    environ = {"ALL_PROXY": "http://p:1", "NO_PROXY": entries}
    assert (chosen(environ, url) is None) is direct


def test_a_proxy_of_another_kind_is_refused_by_the_variables_name() -> None:
    environ = {"ALL_PROXY": "socks5://user:secret@p:1"}
    with pytest.raises(InvalidUrlError, match="ALL_PROXY names no http or https proxy") as caught:
        chosen(environ, "http://a.example/")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://localhost/", "https://b.example/"])
def test_proxy_of_another_kind_matters_only_to_those_who_need_it(url) -> None:
    environ = {"ALL_PROXY": "socks5://p:1", "NO_PROXY": "b.example"}
    assert chosen(environ, url) is None
