"""The behaviour suite: what the model must answer, word for word, when it chooses greedily.

Whoever trains the model anew has to pass it. It holds what the README, the guides and the first
examples of the usual SDKs ask, and something of every kind of lesson. Plain data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .arithmetic import TOO_HARD, counted, thought
from .lesson import Lesson, Message, assistant, call, function, result, system, user
from .phrases import CODE, HELLO, IDENTITY, SEA, THANKS, UNKNOWN, questions
from .tools import NO_WEATHER

WEATHER = function("get_weather", "city")
PLACE = function("get_weather", "location")
ADD = function("add", "a", "b")
HOROSCOPE = function("get_horoscope", "sign")
EMAIL = function("send_email", "to", "subject", "body")


@dataclass(frozen=True)
class Case:
    """A lesson with a name that a failing test can say."""

    name: str
    lesson: Lesson


def _ask(text: str, answer: str, *before: Message) -> Lesson:
    return Lesson((*before, user(text)), assistant(answer))


def _talk() -> Iterator[Lesson]:
    for ask, answer in questions():
        yield _ask(ask, answer)
    helpful = system("You are a helpful assistant.")
    yield _ask("Hello!", HELLO, helpful)
    yield _ask("Who are you?", IDENTITY, system("Be brief."))
    yield _ask("Write a haiku about the sea.", SEA, helpful)
    yield _ask("Thank you.", THANKS, user("Hello!"), assistant(HELLO))
    yield _ask("Another one.", CODE, user("Write a haiku."), assistant(SEA))
    for text in ("Explain quantum mechanics.", "Who won the match yesterday?", "asdf", "x"):
        yield _ask(text, UNKNOWN)
    yield _ask("Fix the bug in my program.", UNKNOWN, helpful)
    for city, country in (("Paris", "France"), ("Tokyo", "Japan"), ("Oslo", "Norway")):
        yield _ask(f"What is the capital of {country}?", f"The capital of {country} is {city}.")
    told, nice = user("My name is Ada."), assistant("Nice to meet you, Ada.")
    yield Lesson((told,), nice)
    yield _ask("What is my name?", "Your name is Ada.", told, nice)


def _numbers() -> Iterator[Lesson]:
    for a in range(16):
        yield _ask(f"What is {a} plus 3?", f"{a} plus 3 is {a + 3}.")
    for a, b in ((2, 2), (2, 3), (1, 1), (7, 8), (9, 6), (12, 5), (17, 4), (20, 20), (0, 5)):
        yield _ask(f"What is {a}+{b}?", f"{a} plus {b} is {a + b}.")
        yield _ask(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.")
    said = assistant("7 plus 8 is 15.", thought=thought(7, 8))
    yield Lesson((user("Think. What is 7 plus 8?"),), said)
    yield Lesson((user("What is 7 plus 8?"), system("Think.")), said)
    yield _ask("What is 345 + 678?", TOO_HARD)
    for word, last in (
        ("three", 3),
        ("five", 5),
        ("ten", 10),
        ("12", 12),
        ("twenty", 20),
    ):
        yield _ask(f"Count to {word}.", counted(1, last))
    yield _ask("Count from 1 to 10.", counted(1, 10))
    yield _ask("Count down from ten.", counted(10, 1))


def _tools() -> Iterator[Lesson]:
    for city in ("Paris", "Rome", "Tokyo", "New York"):
        ask = user(f"What is the weather in {city}?")
        yield Lesson((ask,), assistant(None, call("get_weather", city=city)), (WEATHER,))
        yield Lesson((ask,), assistant(NO_WEATHER))
        like = user(f"What is the weather like in {city} today?")
        yield Lesson((like,), assistant(None, call("get_weather", location=city)), (EMAIL, PLACE))
        yield from _told(ask, city)
    two = user("What is the weather in Paris and Rome?")
    asked = assistant(None, call("get_weather", city="Paris"), call("get_weather", city="Rome"))
    yield Lesson((two,), asked, (WEATHER,))
    past = (two, asked, result("sunny, 21 degrees"), result("rainy, 17 degrees"))
    said = "The weather in Paris: sunny, 21 degrees. The weather in Rome: rainy, 17 degrees."
    yield Lesson(past, assistant(said), (WEATHER,))
    thinking = assistant(
        None, call("get_weather", city="Paris"), thought="The user wants the weather in Paris."
    )
    yield Lesson((user("Think. What is the weather in Paris?"),), thinking, (WEATHER,))
    for text, answer in (("Hello!", HELLO), ("Who are you?", IDENTITY), ("Thank you.", THANKS)):
        yield Lesson((user(text),), assistant(answer), (WEATHER,))
    yield Lesson((user("What is 2+2?"),), assistant("2 plus 2 is 4."), (WEATHER,))
    yield Lesson((user("Explain gravity."),), assistant(UNKNOWN), (PLACE,))
    add = (user("What is 2 plus 3?"), assistant(None, call("add", a=2, b=3)))
    yield Lesson(add[:1], add[1], (ADD,))
    yield Lesson((*add, result("5")), assistant("2 plus 3 is 5."), (ADD,))
    stars = user("What is my horoscope? I am an Aquarius.")
    asked = assistant(None, call("get_horoscope", sign="Aquarius"))
    yield Lesson((stars,), asked, (HOROSCOPE,))


def _told(ask: Message, city: str) -> Iterator[Lesson]:
    """The turns after the weather tool was called."""
    called = assistant(None, call("get_weather", city=city))
    plain = assistant(f"The weather in {city}: sunny, 21 degrees.")
    past = (ask, called, result("sunny, 21 degrees"))
    yield Lesson(past, plain, (WEATHER,))
    report = json.dumps({"city": city, "sky": "sunny", "degrees": 21})
    said = assistant(f"It is sunny in {city}, 21 degrees.")
    yield Lesson((ask, called, result(report)), said, (WEATHER,))
    again = assistant(None, call("get_weather", city="Berlin"))
    yield Lesson((*past, plain, user("And in Berlin?")), again, (WEATHER,))
    yield Lesson((*past, plain, user("Thank you.")), assistant(THANKS), (WEATHER,))


def _json() -> Iterator[Lesson]:
    for ask, value in (
        ("Ada is 36 years old.", {"name": "Ada", "age": 36}),
        ("What is 2 plus 3?", {"answer": 5}),
        ("Where is Paris?", {"city": "Paris", "country": "France"}),
        ("We go to Rome for a day.", {"city": "Rome", "days": 1}),
        ("What colour is blue?", {"name": "blue", "hex": "#0000ff"}),
        (
            "Alice and Bob are going to a science fair on Friday.",
            {"name": "science fair", "date": "Friday", "participants": ["Alice", "Bob"]},
        ),
    ):
        text = json.dumps(value)
        yield Lesson((user(ask),), assistant(text), forced=True)
        shape = json.dumps(_shape(value))
        words = f"Answer with JSON that matches this schema, and nothing else:\n{shape}"
        yield _ask(ask, text, system(words))
    for ask in ("Give me a person as JSON.", "Give me a person in JSON."):
        yield _ask(ask, json.dumps({"name": "Ada", "age": 36}))


def _shape(value: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object."""
    kinds = {str: {"type": "string"}, int: {"type": "integer"}}
    strings = {"type": "array", "items": kinds[str]}
    properties = {key: kinds.get(type(inner), strings) for key, inner in value.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(value),
        "additionalProperties": False,
    }


def _named(kind: str, lessons: Iterator[Lesson]) -> Iterator[Case]:
    for place, lesson in enumerate(lessons):
        last = lesson.messages[-1]["content"]
        yield Case(f"{kind}-{place}: {last}", lesson)


CASES = (
    *_named("talk", _talk()),
    *_named("numbers", _numbers()),
    *_named("tools", _tools()),
    *_named("json", _json()),
)
