"""The whole curriculum: every kind of lesson, how often it is given, and in what company.

A lesson may follow earlier turns and system messages of all sorts; none of them change its answer,
except the one that asks for thought.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .arithmetic import counts, sums, thoughts, too_hard
from .lesson import Lesson, Message, system
from .structured import any_json, events, facts, people, trips
from .talk import capitals, echoes, names, small_talk, unheard
from .tools import any_tool, cities, idle_tools, other_calls, sums_by_tool, weather
from .words import WORDS

ROOMS: dict[Callable[[random.Random], Lesson], int] = {
    small_talk: 20,
    capitals: 5,
    names: 5,
    echoes: 3,
    unheard: 12,
    sums: 22,
    thoughts: 6,
    too_hard: 4,
    counts: 9,
    weather: 18,
    cities: 6,
    sums_by_tool: 6,
    other_calls: 6,
    idle_tools: 13,
    any_tool: 5,
    people: 2,
    events: 2,
    trips: 2,
    facts: 5,
    any_json: 7,
}
"""How often each kind of lesson is given, relative to the others."""

SYSTEMS = (
    *(
        "You are a helpful assistant.",
        "You are a helpful assistant.",
        "Be brief.",
        "Answer briefly.",
    ),
    *(
        "You are a helpful AI assistant.",
        "Answer the question.",
        "You are an assistant.",
        "Be helpful.",
    ),
    *(
        "You are a friendly assistant that answers in one sentence.",
        "You can use tools.",
        "Be kind.",
    ),
    *("Use the tools when you need them.", "Answer in English.", "You are a test assistant."),
    *("You are a coding assistant that talks like a pirate.", "Keep your answers short and clear."),
    *("Extract the event information.", "You are a helpful math tutor.", "Extract the data."),
    *("You are a weather assistant.", "Talk like a pirate.", "You are a helpful coding agent."),
)
_THOUGHTLESS = (small_talk, unheard, counts, capitals, too_hard, echoes)
"""Where a wish for thought changes nothing."""
_PAST = (small_talk, small_talk, sums, unheard, counts, capitals, names, weather)


def _instruction(draw: random.Random) -> Message:
    """A system message: a usual one, or one that says nothing the model could know."""
    kind = draw.random()
    if kind < 0.6:
        return system(draw.choice(SYSTEMS))
    if kind < 0.7:
        return system("\n\n".join(draw.choices(SYSTEMS, k=2)))
    size = draw.randint(2, 30) if kind < 0.99 else draw.randint(50, 300)
    words = draw.choices(WORDS, k=size)
    return system(f"{' '.join(words).capitalize()}.")


def _history(draw: random.Random, lesson: Lesson) -> tuple[Message, ...]:
    """Earlier turns. Tools are told once for a whole conversation, so turns that use some stand
    only before a lesson that has none."""
    past: list[Message] = []
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        earlier = draw.choice(_PAST)(draw)
        if earlier.tools and (lesson.tools or earlier.answer.get("tool_calls")):
            continue
        past += [*earlier.messages, earlier.answer]
    return tuple(past)


def lesson(draw: random.Random) -> Lesson:
    """The next lesson."""
    (room,) = draw.choices(tuple(ROOMS), tuple(ROOMS.values()))
    taught = room(draw)
    messages = taught.messages
    instructed = messages[:1] if messages[0]["role"] == "system" else ()
    messages = messages[len(instructed) :]
    if draw.random() < 0.28 and room is not names:
        messages = (*_history(draw, taught), *messages)
    if draw.random() < 0.04 and room in _THOUGHTLESS:
        messages = (*messages, system("Think."))
    if draw.random() < 0.4 and not instructed:
        instructed = (_instruction(draw),)
    messages = (*instructed, *messages)
    return replace(taught, messages=messages)
