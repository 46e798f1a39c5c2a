"""Counts in how many ways a grammar may read one text.

Where all alternatives of a rule fit the same text, and each of many others goes on from it, one
step of llguidance compares each of them with each, and again with all that it found: seconds for
a thousand. It cannot be interrupted, and everybody waits for it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from dragoman.core.item import JSON

from .schema import find, objects

MAX_READINGS, MAX_IN_SCHEMA = 5_000, 20_000
"""The most alternatives of rules, each as often as its rule is named, and of what references of a
schema lead to: fewer of rules, which may end in one another at each letter of a long token."""
_MOST_LEVELS = 300
"""Levels of alternatives in one another that are followed."""
_NAME = re.compile(r"(?<![\w.@%-])_*+[a-z][\w.-]*")
_NOTHING = re.compile(r'#|//|""')
_JSON = re.compile(r"%json\s*+(?=\{)")


def of_lark(text: str, literals: re.Pattern[str], heads: re.Pattern[str]) -> int:
    """The alternatives of the rules of a grammar, each as often as its rule is named, and those of
    the schemas in it. `literals` finds its texts and comments, and `heads` where rules begin."""
    count = 0
    for each in _JSON.finditer(text):
        with suppress(ValueError, RecursionError):
            count += of_schema(json.JSONDecoder().raw_decode(text, each.end())[0])
    bodies = _bodies(text, literals, heads)
    places = Counter(each for body in bodies.values() for each in _NAME.findall(body))
    named = Counter(places)
    for name in bodies:  # a rule that is but another is that one wherever it is named
        seen, to = {name}, _alone(bodies[name])
        while to in bodies and to not in seen:
            named[to] += places[name]
            seen.add(to)
            to = _alone(bodies[to])
    return count + sum(body.count("|") * named[name] for name, body in bodies.items())


def recursive(text: str, literals: re.Pattern[str], heads: re.Pattern[str]) -> bool:
    """Whether rules of a grammar may come again in themselves.

    >>> recursive('start: a\\na: "x" start?', re.compile('".*?"'), re.compile(r"^\\w+:", re.M))
    True
    """
    bodies = _bodies(text, literals, heads)
    try:
        TopologicalSorter({name: _NAME.findall(body) for name, body in bodies.items()}).prepare()
    except CycleError:
        return True
    return False


def _bodies(text: str, literals: re.Pattern[str], heads: re.Pattern[str]) -> dict[str, str]:
    """What stands behind the name of each rule, without texts, and with a sign before each
    alternative."""
    bare = literals.sub(lambda each: "" if _NOTHING.match(each[0]) else '""', text)
    begun = [*heads.finditer(bare)]
    ends = [*(each.start() for each in begun[1:]), len(bare)]
    bodies: dict[str, str] = {}
    for head, end in zip(begun, ends, strict=False):  # without a head there is an end
        if found := _NAME.search(head[0]):
            bodies[found[0]] = f"{bodies.get(found[0], '')}|{bare[head.end() : end]}"
    return bodies


def _alone(body: str) -> str:
    return body.strip("|() \t\r\n")


def of_schema(root: JSON) -> int:
    """The alternatives in what references lead to, each as often as one leads there.

    >>> of_schema({"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]})
    6
    """
    places = Counter(to for each in objects(root) if isinstance(to := each.get("$ref"), str))
    count = looked = 0
    for to, times in places.items():
        known: dict[int, int] = {}  # anew: what a ring has depends on where it is entered
        count += times * _alternatives(root, {"$ref": to}, known)
        looked += len(known)
        if max(count, looked) > MAX_IN_SCHEMA:
            break
    return max(count, looked)


def _alternatives(root: JSON, schema: JSON, known: dict[int, int], level: int = 0) -> int:
    """How many there are of a schema, with those of what it refers to."""
    while isinstance(schema, dict) and id(schema) not in known:
        parts = [*_parts(root, schema)]
        if len(parts) != 1 or len(parts[0][1]) != 1:
            break
        known[id(schema)] = 1  # a ring adds none
        schema = parts[0][1][0]
    if not isinstance(schema, dict):
        return 1
    if level > _MOST_LEVELS:
        return MAX_IN_SCHEMA + 1
    if id(schema) not in known:
        known[id(schema)] = count = 1
        for every, each in parts:
            found = 1 if every else 0
            for part in each:
                more = _alternatives(root, part, known, level + 1)
                found = found * more if every else found + more
            count *= max(found, 1)
        known[id(schema)] = min(count, MAX_IN_SCHEMA + 1)
    return known[id(schema)]


def _parts(root: JSON, schema: dict[str, JSON]) -> Iterator[tuple[bool, list[JSON]]]:
    """The alternatives of a schema, and what it must fit as well: whether every one, and all."""
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(keyword), list) and parts:
            yield keyword == "allOf", parts
    if isinstance(to := schema.get("$ref"), str):
        target = find(root, to)  # None by an address or an anchor: it may be any
        yield True, [{"anyOf": [{} for _ in objects(root)]} if target is None else target]
