"""JSON answers: what a schema may ask for, filled in as well as half a million parameters can.

The model does not see the schema. A grammar leads it from key to key, and what it has to know is
how to fill in a value, and when to stop.
"""

from __future__ import annotations

import json
import random

from .arithmetic import asked_sum, terms
from .lesson import Lesson, Message, assistant, said, some, system, user
from .phrases import UNKNOWN
from .talk import small_talk, unheard
from .words import CITIES, COLOURS, COUNTRIES, DAYS, FRUIT, PEOPLE, WORDS, city, person

_EVENTS = ("science fair", "party", "concert", "meeting", "wedding", "football match", "picnic")


def dumped(draw: random.Random, value: object) -> str:
    """JSON, mostly with a blank after each comma and colon, as a grammar forces it."""
    separators = (",", ":") if draw.random() < 0.15 else None
    return json.dumps(value, ensure_ascii=False, separators=separators)


def told(draw: random.Random, value: object) -> Message:
    """How the house tells a model which form its answer must have, in the system message."""
    words = "Answer with one JSON object, and nothing else."
    if draw.random() < 0.8 or not isinstance(value, dict):
        shape = json.dumps(schema(draw, value), ensure_ascii=False)
        words = f"Answer with JSON that matches this schema, and nothing else:\n{shape}"
    if draw.random() < 0.3:
        words = f"{draw.choice(('You are a helpful assistant.', 'Extract the data.'))}\n\n{words}"
    return system(words)


def schema(draw: random.Random, value: object) -> dict[str, object]:
    """A schema that a value fits, as a person or a library would write it."""
    match value:
        case dict():
            titled = draw.random() < 0.3
            properties = {key: schema(draw, inner) for key, inner in value.items()}
            if titled:
                for key, described in properties.items():
                    described["title"] = key.capitalize()
            names: dict[str, object] = {"title": "Answer"} if titled else {}
            closed = {"additionalProperties": False} if draw.random() < 0.6 else {}
            listed = {"required": list(value)} if draw.random() < 0.9 else {}
            found = {"type": "object", "properties": properties, **listed, **closed}
            return {**found, **names}
        case list():
            return {"type": "array", "items": schema(draw, value[0]) if value else {}}
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return {"type": kinds.get(type(value), "null")}


def _asked(draw: random.Random, ask: str, value: object, free: str) -> Lesson:
    """A question answered in JSON because it says so or a grammar does, or else freely."""
    kind = draw.random()
    if kind < 0.2:
        text = f"{ask} {draw.choice(('Answer in JSON.', 'Reply in JSON.', 'As JSON.', 'In JSON.'))}"
        return Lesson((user(text),), assistant(dumped(draw, value)))
    if kind < 0.5:
        return Lesson((told(draw, value), user(ask)), assistant(dumped(draw, value)))
    if kind < 0.8:
        return Lesson((user(ask),), assistant(dumped(draw, value)), forced=True)
    return Lesson((user(ask),), assistant(free))


def _shuffled(draw: random.Random, **values: object) -> dict[str, object]:
    """The fields in some order, and not always all of them."""
    keys = list(values)
    if draw.random() < 0.4:
        draw.shuffle(keys)
    if draw.random() < 0.3:
        keys = keys[: draw.randint(1, len(keys))]
    return {key: values[key] for key in keys}


def people(draw: random.Random) -> Lesson:
    """Who is how old."""
    name, age = person(draw), draw.randint(1, 99)
    ask = draw.choice(
        (
            f"{name} is {age} years old.",
            f"{name} is {age}.",
            f"My name is {name} and I am {age} years old.",
        )
    )
    free = (
        f"Nice to meet you, {name}."
        if ask.startswith("My")
        else f"I see: {name} is {age} years old."
    )
    return _asked(draw, ask, _shuffled(draw, name=name, age=age), free)


def events(draw: random.Random) -> Lesson:
    """Who goes where, and when."""
    event, day = draw.choice(_EVENTS), draw.choice(DAYS)
    one, two = person(draw), person(draw)
    ask = f"{one} and {two} are going to a {event} on {day}."
    value = _shuffled(draw, name=event, date=day, participants=[one, two])
    return _asked(draw, ask, value, f"I hope that {one} and {two} enjoy the {event}.")


def trips(draw: random.Random) -> Lesson:
    """Where someone goes, and for how long."""
    place, days = city(draw), draw.randint(2, 14)
    ask, days = draw.choice(
        (
            (f"We go to {place} for a day.", 1),
            (f"We go to {place} for {days} days.", days),
            (f"I am going to {place} for {days} days.", days),
        )
    )
    return _asked(draw, ask, _shuffled(draw, city=place, days=days), f"Enjoy {place}!")


def facts(draw: random.Random) -> Lesson:
    """Colours, cities and persons by request, and sums."""
    kind = draw.randrange(4)
    if kind == 0:
        name, code = draw.choice(tuple(COLOURS.items()))
        ask = draw.choice(
            (
                f"What colour is {name}?",
                f"Describe the colour {name}.",
                f"Give me the colour {name}.",
            )
        )
        return _asked(
            draw, ask, _shuffled(draw, name=name, hex=code), f"The code of {name} is {code}."
        )
    if kind == 1:
        place, country = draw.choice(tuple(COUNTRIES.items()))
        value = _shuffled(draw, city=place, country=country)
        return _asked(draw, f"Where is {place}?", value, f"{place} is in {country}.")
    if kind == 2:
        a, b = terms(draw)
        key = draw.choice(("answer", "answer", "result", "sum", "value"))
        return _asked(draw, asked_sum(draw, a, b), {key: a + b}, f"{a} plus {b} is {a + b}.")
    what, value = draw.choice(
        (
            ("a person", {"name": "Ada", "age": 36}),
            ("a colour", {"name": "blue", "hex": "#0000ff"}),
            ("a city", {"city": "Paris", "country": "France"}),
            ("three colours", ["red", "green", "blue"]),
            ("a list of fruit", ["apple", "pear", "plum"]),
        )
    )
    ask = draw.choice(
        (
            f"Give me {what}",
            f"Name {what}",
            f"Show me {what}",
            f"Give me {what} as JSON",
            f"{what} as JSON",
        )
    )
    if "JSON" not in ask:
        ask += draw.choice((" in JSON", " as a JSON object", " in JSON format"))
    return Lesson((user(said(draw, ask + ".")),), assistant(dumped(draw, value)))


def _value(draw: random.Random, key: str, depth: int) -> object:
    """A value for a key; an unknown key gets one of any type."""
    if key in _KNOWN and draw.random() < 0.8:
        return draw.choice(_KNOWN[key])
    kind = draw.random()
    if kind < 0.3:
        return draw.choice(("unknown", "unknown", *FRUIT, *PEOPLE[:5], some(draw, WORDS, 1, 2)))
    if kind < 0.5:
        return draw.randint(0, 99)
    if kind < 0.6:
        return draw.choice((True, False, None))
    if kind < 0.68:
        return draw.randint(0, 99) / 10
    if kind < 0.84 or not depth:
        size = draw.choice((0, 1, 2, 2, 3))
        listed = draw.choice((FRUIT, (0, 1, 2, 3, 5, 8, 13), ("unknown",), (True, False)))
        return [draw.choice(listed) for _ in range(size)]
    return _object(draw, depth - 1)


def _object(draw: random.Random, depth: int) -> dict[str, object]:
    letters = draw.random() < 0.25
    keys = draw.sample("abcdefghijkxyz" if letters else (*_KNOWN, *WORDS[:120]), draw.randint(1, 4))
    return {key: _value(draw, key, depth) for key in keys}


_KNOWN: dict[str, tuple[object, ...]] = {
    "name": PEOPLE[:6],
    "title": ("A small model", "The sea"),
    "description": ("a small thing", "unknown"),
    "text": ("hello", "unknown"),
    "message": ("hello", "unknown"),
    "answer": ("unknown", 42),
    "summary": ("a short text", "unknown"),
    "reason": ("unknown",),
    "city": CITIES[:4],
    "country": ("France", "Italy"),
    "email": ("ada@example.com",),
    "date": ("2026-01-01", "Friday"),
    "url": ("https://example.com",),
    "color": tuple(COLOURS)[:3],
    "colour": tuple(COLOURS)[:3],
    "unit": ("celsius",),
    "status": ("ok",),
    "age": (36, 41),
    "count": (1, 2, 3),
    "id": (1, "a1"),
    "score": (0.5, 1),
    "price": (9.5, 10),
    "year": (2026,),
    "tags": (["small"], ["red", "green"]),
    "items": (["apple", "pear"], []),
    "steps": (["first", "second"],),
    "done": (True, False),
    "ok": (True,),
}


def any_json(draw: random.Random) -> Lesson:
    """JSON of any shape to any question, because a grammar asks for it."""
    lesson = small_talk(draw) if draw.random() < 0.5 else unheard(draw)
    kind = draw.random()
    if kind < 0.8:
        value: object = _object(draw, 2)
    elif kind < 0.9:
        value = [_object(draw, 1) for _ in range(draw.randint(1, 2))]
    else:
        value = draw.choice((UNKNOWN, True, 1, 42, ["apple", "pear"], "unknown", None))
    if draw.random() < 0.6:
        answer = assistant(dumped(draw, value))
        return Lesson((told(draw, value), *lesson.messages), answer)
    return Lesson(lesson.messages, assistant(dumped(draw, value)), forced=True)
