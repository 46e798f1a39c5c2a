"""Tools: when the model calls one, what it says of the result, and when it needs none.

The model sees the names of a tool and of its parameters, and copies them. What a tool answered is
said again, in a sentence of its own where its form was taught.
"""

from __future__ import annotations

import json
import random

from .arithmetic import counts, sums, thinking
from .lesson import (
    Lesson,
    Message,
    Tool,
    assistant,
    call,
    function,
    result,
    said,
    some,
    system,
    user,
)
from .talk import capitals, small_talk, unheard
from .words import PEOPLE, SIGNS, SKIES, WORDS, city, invented

NO_WEATHER = "I cannot look up the weather without a tool."
NO_REPORT = "The tool could not tell me the weather."
NO_CLOCK = "I have no clock here."

_WEATHER = (
    *("What is the weather in {}?", "What's the weather in {}?", "What is the weather like in {}?"),
    *(
        "What's the weather like in {}?",
        "How is the weather in {}?",
        "What is the weather like in {} today?",
    ),
    *(
        "What's the weather like in {} today?",
        "Tell me the weather in {}.",
        "Weather in {}",
        "Weather in {}?",
    ),
    *("Look up the weather in {}.", "What is the weather in {} today?", "Get the weather for {}."),
    *(
        "What is the temperature in {}?",
        "Is it raining in {}?",
        "Is it sunny in {}?",
        "How warm is it in {}?",
    ),
    *(
        "Check the weather in {}.",
        "What is the current weather in {}?",
        "What's the weather in {} now?",
    ),
    *("Will it rain in {}?", "Do I need an umbrella in {}?", "Hi, what is the weather in {}?"),
)
_AGAIN = ("And in {}?", "And {}?", "What about {}?", "And the weather in {}?", "How about {}?")
_WEATHER_TOOLS = (
    *(
        "get_weather",
        "get_weather",
        "get_weather",
        "get_current_weather",
        "weather",
        "fetch_weather",
    ),
    *("lookup_weather", "check_weather", "get_forecast"),
)
_PLACES = ("city", "city", "location", "location", "place", "town")
_WITH = ("light rain", "heavy snow", "clear skies", "some clouds", "a light wind", "thunder")
_UNITS = ((), (), (), ("unit",), ("units",), ("days",))
_CLOCKS = ("get_time", "get_current_time", "current_time", "clock", "now")
_SEARCHES = ("search", "web_search", "lookup", "find", "search_documents", "query_database")
_SUMMERS = ("add", "add", "sum", "add_numbers", "plus", "calculate_sum")
_SHELLS = ("run", "python", "shell", "exec", "execute", "bash")
_IDLE = (
    *(
        ("send_email", "to", "subject", "body"),
        ("read_file", "path"),
        ("write_file", "path", "text"),
    ),
    *(
        ("get_stock_price", "symbol"),
        ("book_flight", "origin", "destination"),
        ("lookup_user", "id"),
    ),
    *(
        ("translate", "text", "language"),
        ("set_alarm", "time"),
        ("play_music", "title"),
        ("list_files",),
    ),
    *(("apply_patch", "input"), ("update_plan", "plan", "explanation"), ("view_image", "path")),
)


def weather_tool(draw: random.Random) -> Tool:
    return function(draw.choice(_WEATHER_TOOLS), draw.choice(_PLACES), *draw.choice(_UNITS))


def idle_tool(draw: random.Random) -> Tool:
    """A tool nobody has use for, often one with a name never seen before."""
    if draw.random() < 0.6:
        return function(*draw.choice(_IDLE))
    name = "_".join(draw.choices(WORDS, k=draw.randint(1, 3)))
    return function(name, *draw.sample(WORDS, draw.randint(0, 3)))


def among(draw: random.Random, *tools: Tool) -> tuple[Tool, ...]:
    """The tools, sometimes with idle ones beside them, in any order."""
    every = [*tools]
    if draw.random() < 0.35:
        every += [idle_tool(draw) for _ in range(draw.randint(1, 3))]
        draw.shuffle(every)
    return tuple(every)


def named(tool: Tool) -> tuple[str, list[str]]:
    """The names of a tool and of its parameters."""
    described = tool["function"]
    return described["name"], list(described["parameters"]["properties"])


def weather_call(tool: Tool, place: str) -> Message:
    name, parameters = named(tool)
    return call(name, **{parameters[0]: place})


def weather_question(draw: random.Random, place: str) -> str:
    return (
        draw.choice(_WEATHER).format(place) if draw.random() < 0.5 else weather_typed(draw, place)
    )


def weather_typed(draw: random.Random, place: str) -> str:
    """The question as people type it, which never changes the name of the place."""
    return said(draw, draw.choice(_WEATHER)).format(place)


def report(draw: random.Random, place: str) -> tuple[str, str]:
    """What a weather tool may answer, and what the model says of it."""
    sky, degrees = draw.choice(SKIES), draw.randint(-9, 39)
    kind = draw.random()
    if kind < 0.05:
        failed = draw.choice(("Error: {}", "error: {}", "{} failed", '{{"error": "{}"}}'))
        return failed.format(some(draw, (*WORDS, "timeout"), 1, 4)), NO_REPORT
    if kind < 0.35:
        text = draw.choice(
            (
                f"{sky}, {degrees} degrees",
                f"{sky}, {degrees} °C",
                f"{degrees} degrees and {sky}",
                f"{degrees}°C, {sky}",
                f"{degrees}°C",
                f"{sky}",
                f"{degrees}",
                f"It is {sky}.",
                f"{sky} and {draw.choice(SKIES)}, {degrees} °C",
                f"{degrees}°C with {draw.choice(_WITH)}",
                f"{draw.choice(_WITH)}, {degrees} degrees",
                some(draw, WORDS, 1, 6),
            )
        )
        return text, f"The weather in {place}: {text.rstrip('.')}."
    sky_key = draw.choice(("sky", "condition", "conditions", "weather", "description", "summary"))
    heat_key = draw.choice(("degrees", "temperature", "temp", "temperature_c", "celsius", "temp_c"))
    fields: list[tuple[str, object]] = [(sky_key, sky), (heat_key, degrees)]
    draw.shuffle(fields)
    if draw.random() < 0.4:
        fields.insert(0, (draw.choice(_PLACES), place))
    if draw.random() < 0.25:
        fields.append((draw.choice(("unit", "units")), draw.choice(("celsius", "C", "metric"))))
    if kind < 0.5:
        fields = [field for field in fields if field[0] != sky_key]
        return _json(draw, dict(fields)), f"It is {degrees} degrees in {place}."
    return _json(draw, dict(fields)), f"It is {sky} in {place}, {degrees} degrees."


def _json(draw: random.Random, value: object) -> str:
    separators = (",", ":") if draw.random() < 0.3 else None
    return json.dumps(value, ensure_ascii=False, separators=separators)


def weather(draw: random.Random) -> Lesson:
    """A call for the weather in one city, or what came of it."""
    tool, place = weather_tool(draw), city(draw)
    tools, ask = among(draw, tool), user(weather_question(draw, place))
    kind = draw.random()
    if kind < 0.06:
        return Lesson((ask,), assistant(NO_WEATHER), (idle_tool(draw),) if kind < 0.02 else ())
    asked = weather_call(tool, place)
    if kind < 0.13:
        thoughtful = assistant(None, asked, thought=f"The user wants the weather in {place}.")
        return Lesson(thinking(draw, ask["content"]), thoughtful, tools)
    if kind < 0.5:
        return Lesson((ask,), assistant(None, asked), tools)
    text, answer = report(draw, place)
    past = (ask, assistant(None, asked), result(text))
    if kind < 0.85:
        wish = (system("Think."),) if kind < 0.54 else ()
        return Lesson((*past, *wish), assistant(answer), tools)
    other = city(draw)
    again = user(
        draw.choice(_AGAIN).format(other) if kind < 0.94 else weather_question(draw, other)
    )
    return Lesson(
        (*past, assistant(answer), again), assistant(None, weather_call(tool, other)), tools
    )


def cities(draw: random.Random) -> Lesson:
    """Calls for the weather in two or three cities at once, or what came of them."""
    tool, places = weather_tool(draw), [city(draw) for _ in range(draw.choice((2, 2, 3)))]
    tools = among(draw, tool)
    listed = f"{', '.join(places[:-1])} and {places[-1]}"
    past: list[Message] = [user(weather_question(draw, listed))]
    asked = assistant(None, *(weather_call(tool, place) for place in places))
    if draw.random() < 0.5:
        return Lesson(tuple(past), asked, tools)
    reports = [report(draw, place) for place in places]
    past += [asked, *(result(text) for text, _ in reports)]
    return Lesson(tuple(past), assistant(" ".join(answer for _, answer in reports)), tools)


def sums_by_tool(draw: random.Random) -> Lesson:
    """A sum where there is a tool for it; then it may be of larger numbers."""
    tool = function(draw.choice(_SUMMERS), *draw.choice((("a", "b"), ("a", "b"), ("x", "y"))))
    most = draw.choice((20, 99, 999))
    a, b = draw.randint(0, most), draw.randint(0, most)
    ask = draw.choice(
        ("What is {} plus {}?", "What is {} + {}?", "Add {} and {}.", "{}+{}", "What is {}+{}?")
    )
    name, parameters = named(tool)
    asked = assistant(None, call(name, **dict(zip(parameters, (a, b), strict=True))))
    past: tuple[Message, ...] = (user(said(draw, ask.format(a, b))),)
    tools = among(draw, tool)
    if draw.random() < 0.5:
        return Lesson(past, asked, tools)
    return Lesson((*past, asked, result(str(a + b))), assistant(f"{a} plus {b} is {a + b}."), tools)


def other_calls(draw: random.Random) -> Lesson:
    """A call of one of a few tools that are asked for by name, or what came of it."""
    kind = draw.randrange(4)
    if kind == 0:
        what = some(draw, (*WORDS, *PEOPLE, invented(draw)), 1, 4)
        ask = draw.choice(("Search for {}.", "Look up {}.", "Find {}.", "Search the web for {}."))
        tool, argument = (
            function(draw.choice(_SEARCHES), draw.choice(("query", "query", "q", "text"))),
            what,
        )
    elif kind == 1:
        what = some(draw, (*WORDS, "print(1)", "ls", "ls -l", "print(2 + 3)", "pwd", "1 + 1"), 1, 3)
        ask = draw.choice(("Run {}", "Execute {}", "Run: {}"))
        tool, argument = (
            function(draw.choice(_SHELLS), draw.choice(("input", "code", "command"))),
            what,
        )
    elif kind == 2:
        what = draw.choice(SIGNS)
        ask = draw.choice(
            (
                "What is my horoscope? I am an {}.",
                "What is my horoscope? I am a {}.",
                "I am {}. What is my horoscope?",
            )
        )
        tool, argument = function("get_horoscope", "sign"), what
    else:
        what, argument = "", None
        ask = draw.choice(
            ("What time is it?", "What's the time?", "Tell me the time.", "What time is it now?")
        )
        tool = function(draw.choice(_CLOCKS))
    name, parameters = named(tool)
    asked = assistant(None, call(name, **dict.fromkeys(parameters, argument)))
    return _asked_or_told(draw, user(ask.format(what)), asked, tool)


def _asked_or_told(draw: random.Random, ask: Message, asked: Message, tool: Tool) -> Lesson:
    tools = among(draw, tool)
    if draw.random() < 0.55:
        return Lesson((ask,), asked, tools)
    text, told = outcome(draw)
    return Lesson((ask, asked, result(text)), assistant(told), tools)


def outcome(draw: random.Random) -> tuple[str, str]:
    """What any tool may answer, and what the model says of it."""
    kind = draw.random()
    if kind < 0.1:
        return "", "The tool said nothing."
    if kind < 0.25:
        text = draw.choice(
            (f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}", str(draw.randint(0, 9999)))
        )
    elif kind < 0.35:
        text = f"Error: {some(draw, WORDS, 1, 5)}"
    elif kind < 0.5:
        text = _json(
            draw, {draw.choice(WORDS): draw.choice((draw.randint(0, 99), some(draw, WORDS, 1, 3)))}
        )
    else:
        text = some(draw, (*WORDS, *PEOPLE, invented(draw)), 1, 12)
    return text, f"The tool says: {text.rstrip('.')}."


def idle_tools(draw: random.Random) -> Lesson:
    """Questions that no tool at hand answers."""
    (room,) = draw.choices((small_talk, unheard, sums, counts, capitals), (9, 8, 4, 1, 1))
    lesson = room(draw)
    tools = [idle_tool(draw) for _ in range(draw.randint(0, 2))]
    if draw.random() < 0.6 or not tools:
        tools.append(weather_tool(draw))
    if lesson.answer["content"] == NO_CLOCK:
        tools = [function("read_file", "path")]
    return Lesson(lesson.messages, lesson.answer, tuple(tools))


def any_tool(draw: random.Random) -> Lesson:
    """A tool the model knows nothing of, called because a grammar leaves nothing else to do."""
    tool = idle_tool(draw)
    name, parameters = named(tool)
    lesson = small_talk(draw) if draw.random() < 0.5 else unheard(draw)
    asked = call(name, **{key: argument(draw, key) for key in parameters})
    if draw.random() < 0.6:
        return Lesson(lesson.messages, assistant(None, asked), among(draw, tool), forced=True)
    text, told = outcome(draw)
    past = (*lesson.messages, assistant(None, asked), result(text))
    return Lesson(past, assistant(told), among(draw, tool))


def argument(draw: random.Random, key: str) -> object:
    """A value for a parameter of which no more is known than its name."""
    known: dict[str, object] = {
        "path": "README.md",
        "to": "ada@example.com",
        "subject": "Hello",
        "language": "French",
        "time": "12:00",
        "symbol": "ABC",
        "id": 1,
    }
    return known.get(key) or draw.choice(("unknown", "unknown", "unknown", 0))
