"""Which proxy a request goes through, from an environment and by value."""

import pytest

from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import Proxies, parse_url


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
def test_variables(environ: dict[str, str], http: str | None, https: str | None) -> None:
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
def test_hosts_reached_directly(entries: str, url: str, direct: bool) -> None:
    environ = {"ALL_PROXY": "http://p:1", "NO_PROXY": entries}
    assert (chosen(environ, url) is None) is direct


def test_a_proxy_of_another_kind_is_refused_by_the_variables_name() -> None:
    environ = {"ALL_PROXY": "socks5://user:secret@p:1"}
    with pytest.raises(InvalidUrlError, match="ALL_PROXY names no http or https proxy") as caught:
        Proxies.from_environ(environ)
    assert "secret" not in str(caught.value)
