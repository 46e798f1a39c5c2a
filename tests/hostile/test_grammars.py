"""Schemas, regular expressions and grammars that take too much: they cost their own request."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import Message
from dragoman.formats.grammar.demand import Demand, JSONBody, problem
from dragoman.formats.grammar.schema import enforceable
from tests.hostile.stage import memory, watched
from tests.product import Answer, Product, dragoman
from tests.samples import samples


def properties(count: int, **each: Any) -> dict[str, Any]:
    return {f"p{n}": {"type": "integer", **each} for n in range(count)}


def chain(count: int, step: Any) -> dict[str, Any]:
    definitions = {f"d{n}": step(f"#/$defs/d{n + 1}") for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "null"}}}


def closed(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, **fields}


def reading(count: int, to: str = "#") -> dict[str, Any]:
    """What reads each array in so many ways, and again what is in it."""
    arrays = ({"prefixItems": [{"$ref": to}], "items": {"const": n}} for n in range(count))
    return {"anyOf": [{"type": "integer"}, *({"type": "array", **each} for each in arrays)]}


RULES = 900
READING = "start: s\ns: /[0-9]/ | " + " | ".join(f"r{n}" for n in range(RULES)) + "\n"


MANY = [f"v{n * 7919}" for n in range(500_000)]
SCHEMAS: dict[str, Any] = {
    "F1 objects": chain(1000, lambda to: {"type": "object", "properties": {"a": {"$ref": to}}}),
    "F1 references": chain(3000, lambda to: {"$ref": to}),
    "6a.06": {"enum": MANY[:100_000]},
    "6a.07, 6b.21": {"enum": MANY},
    "6a.08": closed(properties=properties(10_000), required=[*properties(10_000)]),
    "6a.09": closed(properties=properties(10_000)),
    "6a.13": {"anyOf": [{"const": each} for each in MANY[:5_000]]},
    "6a.22": {"type": "integer", "multipleOf": 1_000_003},
    "6a.25": {"type": "object", "patternProperties": {f"^a{n}": {} for n in range(200)}},
    "6a.28": {"type": "string", "pattern": "a?" * 3_000 + "a" * 3_000},
    "6b.22": closed(properties=properties(5_000)),
    "6b.23": {"type": "object", "required": MANY[:50_000]},
    "6b.25": {"type": "object", "patternProperties": {f"^a{n}x$": {} for n in range(400)}},
    "6b.26": {"type": "object", "patternProperties": {f"^a{n}x$": {} for n in range(1_500)}},
    "6b.28": closed(properties={f"p{n}": {"pattern": f"^{n}a+$"} for n in range(3_000)}),
    "readings": reading(900),
    "readings of an anchor": {"$anchor": "a", **reading(900, "#a")},
    "readings of another name": {**reading(900, "#/$defs/a"), "$defs": {"a": {"$ref": "#"}}},
    "F16 alternatives": {"anyOf": [closed(properties={each: {}}) for each in MANY[:3_000]]},
}
DEMANDS: dict[str, dict[str, Any]] = {
    "6a.35": {"guided_regex": "(" * 500_000 + ")" * 500_000},
    "F3 regex": {"guided_regex": "a?" * 3_000 + "a" * 3_000},
    "F16 regex": {"guided_regex": "a?" * 300 + "a" * 300},
    "6b.29": {"guided_regex": "|".join(MANY)},
    "6b.30": {"guided_regex": "(" * 5_000_000 + ")" * 5_000_000},
    "6b.31": {"guided_regex": "[a-c]" * 1_000_000},
    "6b.35": {"guided_choice": MANY},
    "6b.36": {"guided_choice": ["x" * 5_000_000]},
    "F1 rules": {
        "guided_grammar": "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(3_000))
    },
    "readings": {
        "guided_grammar": READING + "\n".join(f'r{n}: "[" s "]" "{n}"?' for n in range(RULES))
    },
    "readings of another name": {
        "guided_grammar": READING.replace("s:", "s: (t)\nt:")
        + "\n".join(f'r{n}: "[" s "]" "{n}"?' for n in range(RULES))
    },
    "readings that end in one another": {
        "guided_grammar": "start: s\ns: /[.!]/ | "
        + " | ".join(f'/[a-z]/ s "{n}"?' for n in range(100))
    },
    "6b.05": {
        "guided_grammar": "start: " + " | ".join(f"r{n}" for n in range(900)) + "\n"
        + "\n".join(f'r{n}: "a{n}"' for n in range(20_000))
    },
    "6b.10": {"guided_grammar": 'start: %regex {"substring_chars": "' + "ab c" * 250_000 + '"}'},
    "6b.11": {"guided_grammar": 'start: %regex {"substring_words": "' + "ab c " * 200_000 + '"}'},
    "a rule and white space": {"guided_grammar": "a" + " " * 65_000},
    "texts that are not closed": {"guided_grammar": '"\\' * 32_000},
    "expressions that are not closed": {"guided_grammar": "/\\" * 32_000},
    "classes that are not closed": {"guided_regex": "[" * 16_000},
    "brackets": {"guided_grammar": "start: " + "(" * 5_000 + '"a"' + ")" * 5_000},
}  # fmt: skip
ENDLESS: dict[str, dict[str, Any]] = {
    # After the tokens that it is tried with, only the letter a may follow, for ever.
    "13.01": {
        "guided_grammar": 'start: MANY AS "a"\nMANY: /[b-z]{200}/\nAS: /a+/',
        "reasoning_effort": "none",
        "max_tokens": 400,
    },
    "6a.05": {
        "guided_json": chain(
            30, lambda to: {"type": "object", "properties": {each: {"$ref": to} for each in "abcd"}}
        )
    },
    "6a.14": {
        "guided_json": {
            "allOf": [{"anyOf": [closed(properties=properties(n + 2)), {}]} for n in range(20)]
        }
    },
    "6b.19": {
        "guided_json": chain(60, lambda to: {"type": "array", "prefixItems": [{"$ref": to}] * 6})
    },
    "6a.27": {"guided_regex": "((a{1000}){1000}){1000}"},
    "6b.02": {"guided_grammar": 'start: s\ns: s s s | s s | "a" | ""'},
    "6b.03": {
        "guided_grammar": "start: r0\n"
        + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60))
        + '\nr60: "a"'
    },
    "6b.06": {"guided_grammar": 'start: r{1000000}\nr: "a"'},
    "6b.32": {"guided_regex": "(((a{1,1000}){1,1000}){1,1000}b){9}"},
}
SLOW = closed(properties={f"p{n}": {"multipleOf": 9_000 + n} for n in range(200)})
"""Small, and takes half a minute to compile."""


def body(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hi"}
    return {"model": "pocket", "messages": [message], "max_tokens": 4, **fields}


def with_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


SMALL = body(response_format=with_schema(closed(properties=properties(2), required=["p0"])))


@pytest.fixture(scope="module")
def pocket() -> Iterator[Product]:
    with dragoman("pocket") as server:
        assert server.post("chat", SMALL).status == 200
        yield server


def cost_of(pocket: Product, asked: dict[str, Any]) -> Answer:
    """The answer to a request that hurt nobody else."""
    with watched(pocket) as cost:
        answer = pocket.post("chat", asked)
    assert cost.pause < 1.0, cost
    assert cost.grown < 400, cost
    assert pocket.post("chat", SMALL).status == 200
    return answer


@pytest.mark.parametrize("named", SCHEMAS)
def test_a_schema_that_takes_too_much_is_refused(pocket, named) -> None:
    answer = cost_of(pocket, body(guided_json=SCHEMAS[named]))
    assert answer.status == 400, answer.body
    assert answer.json["error"]["message"].startswith("guided_json"), answer.body


@pytest.mark.parametrize("named", DEMANDS)
def test_a_grammar_that_takes_too_much_is_refused(pocket, named) -> None:
    answer = cost_of(pocket, body(**DEMANDS[named]))
    assert answer.status == 400, answer.body


@pytest.mark.parametrize("named", ENDLESS)
def test_a_grammar_that_proves_too_large_later_costs_only_its_answer(pocket, named) -> None:
    assert cost_of(pocket, body(**ENDLESS[named])).status in (200, 400)


def test_a_slow_grammar_is_given_up(pocket) -> None:
    answer = cost_of(pocket, body(guided_json=SLOW))
    assert answer.status == 400
    assert "takes more than 2 s or 256 MB to compile" in answer.json["error"]["message"]


@contextmanager
def waiting(pocket: Product, asked: dict[str, Any]) -> Iterator[socket.socket]:
    """Ask, and wait for no answer."""
    content = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{pocket.port}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", pocket.port)) as connection:
        connection.sendall(head.encode() + content)
        yield connection


def leave(pocket: Product, asked: dict[str, Any]) -> None:
    """Ask, and go before the answer."""
    with waiting(pocket, asked):
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    """The processes that a process started, and those that they did."""
    found = list[int]()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError):  # it has ended since
            found += map(int, thread.read_text().split())
    return [each for child in found for each in (child, *children(child))]


def test_6c_01_grammars_of_disconnected_clients_block_no_others(pocket) -> None:
    before = len(children(pocket.process.pid))
    for number in range(8):
        leave(pocket, body(guided_json={**SLOW, "title": str(number)}))
    for asked in (
        body(),
        {**body(), "messages": [{"role": "user", "content": "word " * 1_000}]},
        body(response_format=with_schema(closed(properties=properties(3)))),
        body(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    ):
        assert pocket.post("chat", asked).status == 200
    leave(pocket, body(guided_json={**SLOW, "title": "last"}))
    deadline = time.monotonic() + 1  # a process takes a moment to end, and 2 s if nobody ends it
    while len(children(pocket.process.pid)) > before:
        assert time.monotonic() < deadline, "a process works for nobody"


def test_grammars_of_a_client_do_not_hold_up_its_other_requests(pocket) -> None:
    with ExitStack() as stack:
        slow = [
            stack.enter_context(waiting(pocket, body(guided_json={**SLOW, "title": f"x{number}"})))
            for number in range(6)
        ]
        time.sleep(0.2)
        message = {"role": "user", "content": "word " * 1_000}
        assert pocket.post("chat", {**body(), "messages": [message]}).status == 200
        answered, _, _ = select.select(slow, (), (), 0)
        assert len(answered) < len(slow), "it waited for all of them"


def test_6c_02_a_server_that_compiles_ends_in_time(tmp_path) -> None:
    (tmp_path / "dragoman.toml").write_text("[server]\ndrain = 1\n")
    with dragoman("pocket", "--config", str(tmp_path / "dragoman.toml")) as server:
        threads = [
            threading.Thread(
                target=leave, args=(server, body(guided_json={**SLOW, "title": str(n)}))
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        started = children(server.process.pid)
        server.process.terminate()
        for thread in threads:
            thread.join()
        assert server.process.wait(15) in (0, -15)
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in started):
            assert time.monotonic() < deadline, "a child outlives the server"
            time.sleep(0.1)


def test_7_02_grammars_leave_bounded_memory(pocket) -> None:
    before = memory(pocket.process.pid)
    for number in range(samples(5, 40)):
        texts = [f"{number} {each} {'x' * 40}" for each in range(4_000)]
        assert pocket.post("chat", body(guided_choice=texts)).status == 200
    assert memory(pocket.process.pid) - before < 300


RING = {
    "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]},
    "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "integer"}]},
}
DOUBLED = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
FORKS: dict[str, dict[str, Any]] = {
    "a ring": {"$ref": "#/$defs/a", "$defs": RING},
    "a chain": {"$ref": "#/$defs/d0", "$defs": {**DOUBLED, "d60": {"type": "integer"}}},
}


@pytest.mark.parametrize("named", FORKS)
def test_references_that_fork_are_not_followed_without_end(named) -> None:
    """Neither where an answer is verified, nor where alternatives are told apart."""
    schema = FORKS[named]
    asked = Demand(JSONBody("schema", schema), (), several=False)
    found = problem(asked, [Message("assistant", "5")], lambda body, text: True)
    assert (found is None) == (named == "a ring")
    with pytest.raises(FaultError, match="may both fit"):
        enforceable({"$defs": schema["$defs"], "oneOf": [{"const": 1}, schema]}, "schema")


def test_alternatives_count_where_an_answer_is_verified() -> None:
    """Each of many ways through a schema may end at a list of values, or at a pattern."""
    judged: list[str] = []
    for leaf, answer in ({"enum": [*range(9_000)]}, "9001"), ({"pattern": "^a$"}, '"a"'):
        schema = {"$ref": "#/$defs/d0", "$defs": {**DOUBLED, "d60": leaf}}
        asked = Demand(JSONBody("schema", schema), (), several=False)
        found = problem(asked, [Message("assistant", answer)], lambda _, s: not judged.append(s))
        assert found is not None
    assert len(judged) < 10_000


def test_answers_too_deep_or_large_to_be_verified_do_not_fit() -> None:
    asked = Demand(JSONBody("schema", {"items": {"$ref": "#"}, "multipleOf": 0.5}), (), False)
    for text in ("[" * 900 + "]" * 900, "1e999", "1" * 400):
        assert problem(asked, [Message("assistant", text)], lambda body, text: True) is not None
    assert problem(asked, [Message("assistant", "1.5")], lambda body, text: True) is None


HUGE = 10**400
NUMBERS: dict[str, dict[str, Any]] = {
    "const": {"const": HUGE},
    "maximum": {"type": "integer", "maximum": HUGE},
    "multipleOf": {"type": "integer", "multipleOf": HUGE},
    "minLength": {"type": "string", "minLength": HUGE},
    "default": {"properties": {"a": {"default": HUGE}}},
    "enum": {"enum": [HUGE, 1]},
}


@pytest.mark.parametrize("letter", ["\u2028", "\x85", "\x1e"])
def test_what_python_takes_for_the_end_of_a_line_is_a_letter(pocket, letter) -> None:
    text = f"a{letter}b"
    answer = pocket.post("chat", body(response_format=with_schema({"enum": [text]})))
    assert answer.status == 200, answer.body
    answer = pocket.post("chat", body(guided_choice=[text]))
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("named", NUMBERS)
def test_numbers_that_no_float_holds_are_refused(pocket, named) -> None:
    answer = pocket.post("chat", body(response_format=with_schema(NUMBERS[named])))
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    tool = {"name": "f", "parameters": {"properties": {"a": NUMBERS[named]}}}
    answer = pocket.post("chat", body(tools=[{"type": "function", "function": tool}]))
    assert answer.status == 200, answer.body
