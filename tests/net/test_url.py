"""URLs: what is read out of them and refused, and which proxy leads to them."""

import pytest

from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import Proxies, parse_url


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "authority", "target"),
    [
        ("http://a.example", "http", "a.example", 80, "a.example", "/"),
        ("https://a.example/", "https", "a.example", 443, "a.example", "/"),
        ("http://A.Example:80/v1", "http", "a.example", 80, "a.example", "/v1"),
        ("http://a.example:443/v1?x=1#frag", "http", "a.example", 443, "a.example:443", "/v1?x=1"),
        ("http://a.example:8080", "http", "a.example", 8080, "a.example:8080", "/"),
        ("http://a.example?x=1", "http", "a.example", 80, "a.example", "/?x=1"),
        ("http://[::1]:80/", "http", "::1", 80, "[::1]", "/"),
        ("https://[2001:DB8:0::1]:1/", "https", "2001:db8::1", 1, "[2001:db8::1]:1", "/"),
        ("http://127.0.0.1:11434/v1", "http", "127.0.0.1", 11434, "127.0.0.1:11434", "/v1"),
        ("http://my_service:1/x", "http", "my_service", 1, "my_service:1", "/x"),
        ("http://bücher.example/ü?ü", "http", "xn--bcher-kva.example", 80, None, "/%C3%BC?%C3%BC"),
        ("http://a.example/%7Ea|b{}", "http", "a.example", 80, "a.example", "/%7Ea%7Cb%7B%7D"),
        ("HTTP://a.example./", "http", "a.example.", 80, "a.example.", "/"),
    ],
)
def test_a_url_is_taken_apart(text, scheme, host, port, authority, target) -> None:
    url = parse_url(text)
    assert (url.scheme, url.host, url.port, url.target) == (scheme, host, port, target)
    assert url.authority == authority or authority is None
    assert url.endpoint == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example/v1",
        "//a.example/v1",
        "file:///etc/passwd",
        "ftp://a.example/",
        "data:text/plain,hi",
        "http://",
        "http:///v1",
        "http://a b/",
        "http://a.example/a b",
        "http://a.example/\r\nX: y",
        "http://a.example\\@b.example/",
        "http://a.example\t/",
        "\x00http://a.example/",
        "http://a.example:port/",
        "http://a.example:99999/",
        "http://[::1/",
        "http://[::g]/",
        "http://[fe80::1%25eth0]/",
        "http://a..example/",
        "http://.example/",
        "http://a%2eexample/",
        f"http://{'a' * 64}.example/",
        f"http://{'ü' * 64}.example/",
        "http://a.example/" + "x" * 8192,
    ],
)
def test_invalid_url_is_refused_without_being_quoted(text) -> None:
    with pytest.raises(InvalidUrlError) as caught:
        parse_url(text)
    assert not text or text not in str(caught.value)


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


@pytest.mark.parametrize(
    ("environ", "http", "https"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": "http://p:1"}, "http://p:1/", None),
        ({"HTTPS_PROXY": "http://p:1"}, None, "http://p:1/"),
        ({"https_proxy": "https://p:1"}, None, "https://p:1/"),
        ({"ALL_PROXY": "p:1"}, "http://p:1/", "http://p:1/"),
        ({"ALL_PROXY": "http://p:1", "HTTP_PROXY": "q:2"}, "http://q:2/", "http://p:1/"),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": "http://q:2"}, "http://q:2/", None),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": ""}, None, None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, None, None),
    ],
)
def test_variables(environ, http, https) -> None:
    assert chosen(environ, "http://a.example/") == http
    assert chosen(environ, "https://a.example/") == https


@pytest.mark.parametrize(
    ("entries", "url", "direct"),
    [
        ("a.example", "http://a.example/", True),
        ("a.example", "http://b.a.example/", True),
        (".a.example", "http://b.a.example/", True),
        ("*.a.example", "http://b.a.example/", True),
        ("a.example", "http://ba.example/", False),
        ("b.example, A.Example", "http://a.example/", True),
        ("a.example:81", "http://a.example:81/", True),
        ("a.example:81", "http://a.example/", False),
        ("a.example:81", "http://b.a.example:81/", True),
        ("10.0.0.0/8", "http://10.1.2.3/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("10.1.2.3", "http://10.1.2.3/", True),
        ("10.1.2.3:81", "http://10.1.2.3:81/", True),
        ("a.example", "http://10.1.2.3/", False),
        ("[2001:db8::]/32", "http://10.1.2.3/", False),
        ("2001:db8::/32", "http://[2001:db8::1]/", True),
        ("", "http://localhost:11434/", True),
        ("", "http://127.0.0.1:11434/", True),
        ("", "http://[::1]:11434/", True),
        ("", "http://127.0.0.1.example/", False),
    ],
)
def test_hosts_reached_directly(entries, url, direct) -> None:
    environ = {"ALL_PROXY": "http://p:1", "NO_PROXY": entries}
    assert (chosen(environ, url) is None) is direct


def test_a_proxy_of_another_kind_is_refused_by_the_variables_name() -> None:
    environ = {"ALL_PROXY": "socks5://user:secret@p:1"}
    with pytest.raises(InvalidUrlError, match="ALL_PROXY names no http or https proxy") as caught:
        Proxies.from_environ(environ)
    assert "secret" not in str(caught.value)
