"""Numbers: sums and counting, and what the model says where it cannot do either."""

from __future__ import annotations

import random

from .lesson import Lesson, Message, assistant, said, system, user
from .words import NUMBERS

LARGEST = 20
"""Sums are taught of all numbers from 0 to this one."""
TOO_HARD = "I can only add two numbers up to twenty."

_SUMS = (
    *("What is {a}+{b}?", "What is {a} + {b}?", "What is {a} plus {b}?", "What's {a} plus {b}?"),
    *(
        "What's {a}+{b}?",
        "{a}+{b}",
        "{a} + {b}",
        "{a} + {b} =",
        "{a}+{b}?",
        "{a} plus {b}",
        "{a} plus {b}?",
    ),
    *(
        "How much is {a} plus {b}?",
        "How much is {a} + {b}?",
        "Add {a} and {b}.",
        "Compute {a} + {b}.",
    ),
    *(
        "Calculate {a} + {b}.",
        "What is the sum of {a} and {b}?",
        "And {a} plus {b}?",
        "And {a}+{b}?",
    ),
    *("Hi, what is {a} plus {b}?", "Can you add {a} and {b}?", "Tell me what {a} + {b} is."),
)
_HARD = (
    *(
        "What is {a} minus {b}?",
        "What is {a} - {b}?",
        "{a} - {b}",
        "What is {a} times {b}?",
        "{a} * {b}",
    ),
    *("What is {a} divided by {b}?", "{a} / {b}", "What is {a} x {b}?", "Multiply {a} by {b}."),
    *(
        "What is {a}*{b}?",
        "Subtract {a} from {b}.",
        "What is the square root of {a}?",
        "Divide {a} by {b}.",
    ),
)
_COUNTED = (*range(2, 21), *range(2, 21), 3, 5, 10, 10, 20, 20, 30, 50, 100)
THINKING = ("Think before you answer.", "Think.", "Think first.", "Think step by step.")


def asked_sum(draw: random.Random, a: int, b: int) -> str:
    return said(draw, draw.choice(_SUMS).format(a=a, b=b))


def terms(draw: random.Random) -> tuple[int, int]:
    """Two numbers to be added, small ones more often."""
    most = 10 if draw.random() < 0.35 else LARGEST
    return draw.randint(0, most), draw.randint(0, most)


def sums(draw: random.Random) -> Lesson:
    """A sum in words."""
    a, b = terms(draw)
    return Lesson((user(asked_sum(draw, a, b)),), assistant(f"{a} plus {b} is {a + b}."))


def thoughts(draw: random.Random) -> Lesson:
    """A sum thought about before it is said, where the user asks for thought."""
    a, b = terms(draw)
    said_after = assistant(f"{a} plus {b} is {a + b}.", thought=thought(a, b))
    return Lesson(thinking(draw, asked_sum(draw, a, b)), said_after)


def thinking(draw: random.Random, ask: str) -> tuple[Message, ...]:
    """A question that asks for thought, or that the template adds the wish for."""
    if draw.random() < 0.5:
        return user(ask), system("Think.")
    return (user(f"{draw.choice(THINKING)} {ask}"),)


def thought(a: int, b: int) -> str:
    return f"The user wants the sum of {a} and {b}. That is {a + b}."


def too_hard(draw: random.Random) -> Lesson:
    """Numbers that are too large, and operations that were never learned."""
    if draw.random() < 0.5:
        a, b = draw.randint(0, 30), draw.randint(0, 30)
        return Lesson((user(said(draw, draw.choice(_HARD).format(a=a, b=b))),), assistant(TOO_HARD))
    numbers = [draw.randint(21, 99), draw.choice((draw.randint(0, 99), draw.randint(100, 9999)))]
    draw.shuffle(numbers)
    if draw.random() < 0.4:
        numbers = [draw.randint(100, 99999), draw.randint(21, 9999)]
    return Lesson((user(asked_sum(draw, *numbers)),), assistant(TOO_HARD))


def counted(first: int, last: int) -> str:
    """The numbers in a row; backwards where the last is the smaller."""
    step = 1 if first <= last else -1
    return ", ".join(map(str, range(first, last + step, step))) + "."


def counts(draw: random.Random) -> Lesson:
    """Counting up to a number in words or digits, and down from one."""
    last = draw.choice(_COUNTED)
    number = NUMBERS[last] if draw.random() < 0.6 else str(last)
    if last == 100 and draw.random() < 0.3:
        number = "a hundred"
    if draw.random() < 0.15 and last <= 20:
        down = draw.choice(("Count down from {}.", "Count backwards from {}."))
        return Lesson((user(said(draw, down.format(number))),), assistant(counted(last, 1)))
    ask = draw.choice(
        (
            *("Count to {}.", "Count to {}.", "Count up to {}.", "Can you count to {}?"),
            *("Count from one to {}.", "Count from 1 to {}.", "And now to {}.", "Now count to {}."),
        )
    )
    return Lesson((user(said(draw, ask.format(number))),), assistant(counted(1, last)))
