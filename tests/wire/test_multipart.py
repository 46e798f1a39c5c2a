"""Forms with files in them: what is read of them, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import FaultError
from dragoman.wire.multipart import (
    MAX_FIELD,
    MAX_FILENAME,
    MAX_HEAD,
    MAX_PARTS,
    find_boundary,
    read_parts,
)


def part(data: bytes, disposition: str = 'form-data; name="a"', *more: str) -> bytes:
    head = [f"Content-Disposition: {disposition}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def form(*parts: bytes) -> bytes:
    return b"".join(b"--x\r\n" + each + b"\r\n" for each in parts) + b"--x--\r\n"


def names(disposition: str) -> tuple[str, str | None]:
    (found,) = read_parts(form(part(b"1", disposition)), b"x")
    return found.name, found.filename


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('multipart/form-data; charset=utf-8; Boundary="a b"', b"a b"),
        ("multipart/form-data;boundary=" + "x" * 70, b"x" * 70),
        ("multipart/form-data; boundary=a; boundary=b", b"a"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ('multipart/form-data; boundary="a "', None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ("multipart/form-data; boundary=\xfc", None),
    ],
)
def test_boundary_is_found_in_the_header(content_type, boundary) -> None:
    if boundary is None:
        with pytest.raises(FaultError, match="boundary of 1 to 70"):
            find_boundary(content_type)
    else:
        assert find_boundary(content_type) == boundary


@given(st.lists(st.binary().filter(lambda data: b"--x" not in data), max_size=4))
def test_parts_have_their_bytes(each) -> None:
    assert [bytes(part.data) for part in read_parts(form(*map(part, each)), b"x")] == each


def test_what_stands_before_and_behind_the_parts_is_passed_over() -> None:
    (found,) = read_parts(b"For people\r\n" + form(part(b"1")) + b"More\r\n--x", b"x")
    assert found.text == "1"
    assert read_parts(b"--x--", b"x") == []


def test_spaces_behind_a_boundary_are_none() -> None:
    (found,) = read_parts(b"--x \t\r\n" + part(b"1") + b"\r\n--x--", b"x")
    assert found.text == "1"


@pytest.mark.parametrize(
    ("disposition", "found"),
    [
        ('form-data; name="a"', ("a", None)),
        ("form-data; name=a; filename=b.txt", ("a", "b.txt")),
        ('Form-Data; NAME="a"; filename="C:\\docs\\b.txt"', ("a", "b.txt")),
        ('form-data; name="a"; filename="../../etc/passwd"', ("a", "passwd")),
        ('form-data; name="a"; filename="/"', ("a", "")),
        ('form-data; name="a"; filename=".."', ("a", "")),
        ('form-data; name="a"; filename="b%22%0D%0A.txt"', ("a", 'b".txt')),
        ('form-data; name="a"; filename="b\\".txt"', ("a", 'b".txt')),
        ('form-data; name="a"; filename="b\u202e\x07.txt"', ("a", "b.txt")),
        ('form-data; name="a"; filename="Übung.txt"', ("a", "Übung.txt")),
        ("form-data; name=a; filename=x; filename*=utf-8''%C3%9C%2Fb.txt", ("a", "b.txt")),
        (f'form-data; name="a"; filename="{"b" * 300}.txt"', ("a", "b" * 251 + ".txt")),
    ],
)
def test_names_are_read(disposition, found) -> None:
    assert names(disposition) == found
    assert len(found[1] or "") <= MAX_FILENAME


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "boundary of its content-type"),
        (b"--y\r\n\r\n1\r\n--y--", "boundary of its content-type"),
        (b"x--x\r\n" + part(b"1"), "boundary of its content-type"),
        (b"--x", "something behind a boundary"),
        (b"--xy\r\n" + part(b"1") + b"\r\n--x--", "something behind a boundary"),
        (b"--x\r\n" + part(b"1"), "ends before its last boundary"),
        (b"--x\r\n" + part(b"1") + b"\r\n--x", "something behind a boundary"),
        (b"--x\r\nA: b\r\n", "headers of more than"),
        (b"--x\r\nA: " + b"b" * MAX_HEAD + b"\r\n\r\n1\r\n--x--", "headers of more than"),
        (b"--x\r\n\r\n1\r\n--x--", "no name"),
        (form(part(b"1", "attachment; name=a")), "no name"),
        (form(part(b"1", "form-data; filename=a")), "no name"),
        (form(*[part(b"1")] * (MAX_PARTS + 1)), f"more than {MAX_PARTS} parts"),
        (
            form(part(b"MQ==", 'form-data; name="a"', "Content-Transfer-Encoding: base64")),
            "encoded with 'base64'",
        ),
    ],
)
def test_what_is_no_form_is_refused(body, problem) -> None:
    with pytest.raises(FaultError, match=problem):
        read_parts(body, b"x")


def test_part_may_say_that_it_is_not_encoded() -> None:
    body = form(part(b"1", 'form-data; name="a"', "Content-Transfer-Encoding: binary", "X: y"))
    assert read_parts(body, b"x")[0].text == "1"


@pytest.mark.parametrize("data", [b"\xff", b"x" * (MAX_FIELD + 1)])
def test_field_that_is_no_text_or_long_is_refused(data) -> None:
    (found,) = read_parts(form(part(data)), b"x")
    with pytest.raises(FaultError, match=r"^a: is "):
        found.text


@given(st.binary(max_size=300), st.integers(0, 200))
def test_reading_never_fails_otherwise(noise, cut) -> None:
    body = form(part(noise), part(b"2", 'form-data; name="b"; filename="c"'))
    for broken in (body[:cut], body[:cut] + noise, body[:cut] + noise + body[cut:]):
        try:
            read_parts(broken, b"x")
        except FaultError:
            pass
