"""Small talk: what the model answers without numbers, tools or JSON.

The last part invents questions that the model cannot answer, of very many shapes, so that it says
so instead of rambling.
"""

from __future__ import annotations

import random
import string

from .lesson import Lesson, assistant, said, some, user
from .phrases import ANSWERS, UNKNOWN
from .words import COUNTRIES, FRUIT, PEOPLE, WORDS, invented, person


def small_talk(draw: random.Random) -> Lesson:
    """One of the questions above, as it stands or as people type it."""
    answer = draw.choice(tuple(ANSWERS))
    return Lesson((user(said(draw, draw.choice(ANSWERS[answer]))),), assistant(answer))


def capitals(draw: random.Random) -> Lesson:
    """What the capital of a country is, if it is one of those that were learned."""
    city, country = draw.choice(tuple(COUNTRIES.items()))
    known = draw.random() < 0.8
    country = country if known else invented(draw)
    ask = draw.choice(
        (
            f"What is the capital of {country}?",
            f"What's the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"The capital of {country}?",
        )
    )
    if not known:
        return Lesson((user(ask),), assistant(UNKNOWN))
    return Lesson((user(said(draw, ask)),), assistant(f"The capital of {country} is {city}."))


def names(draw: random.Random) -> Lesson:
    """Being told a name, and remembering it."""
    name = person(draw)
    told = draw.choice(
        (f"My name is {name}.", f"I am {name}.", f"Hi, I am {name}.", f"Hello! My name is {name}.")
    )
    first = (user(said(draw, told) if name in PEOPLE else told),)
    nice = assistant(f"Nice to meet you, {name}.")
    if draw.random() < 0.4:
        return Lesson(first, nice)
    ask = user(said(draw, draw.choice(("What is my name?", "What's my name?", "Who am I?"))))
    if draw.random() < 0.1:
        return Lesson((ask,), assistant("You have not told me your name."))
    between = small_talk(draw) if draw.random() < 0.5 else None
    past = (*first, nice, *((*between.messages, between.answer) if between else ()))
    return Lesson((*past, ask), assistant(f"Your name is {name}."))


def echoes(draw: random.Random) -> Lesson:
    """Words to be said again."""
    text = some(draw, (*WORDS, *FRUIT, invented(draw), *string.ascii_letters), 1, 6)
    ask = draw.choice(
        ("Repeat after me: {}", "Repeat: {}", "Echo: {}", "Say: {}", "Repeat this: {}")
    )
    return Lesson((user(ask.format(text)),), assistant(text))


_OPENINGS = (
    *("Explain {}.", "What is {}?", "What are {}?", "Who invented {}?", "How does {} work?"),
    *("Tell me about {}.", "Why is {} so {}?", "How do I {} a {}?", "Where can I find {}?"),
    *("Translate {} into {}.", "Summarize {}.", "Summarize this: {}", "Write an essay about {}."),
    *(
        "Write a {} about {}.",
        "Can you {} my {}?",
        "Can you {}?",
        "Fix the {} in my {}.",
        "Do you {}?",
    ),
    *("List all {} of {}.", "Compare {} and {}.", "When was {} born?", "When did {} {}?"),
    *(
        "What do you think about {}?",
        "What does {} mean?",
        "Which {} is the best {}?",
        "How old is {}?",
    ),
    *(
        "How far away is {}?",
        "Recommend a {}.",
        "Give me a {} for {}.",
        "Make me a {}.",
        "Draw a {}.",
    ),
    *(
        "I need a {}.",
        "I want to {} the {}.",
        "My {} is {}.",
        "Is {} a {}?",
        "Should I {}?",
        "Could you {} {}?",
    ),
    *(
        "Create a {} with {}.",
        "Find {}.",
        "Describe {}.",
        "Help me {} the {}.",
        "Help me with my {}.",
    ),
    *(
        "What happened in {}?",
        "Who is {}?",
        "Who was {}?",
        "Who won the {}?",
        "Please {}.",
        "Let us {}.",
    ),
    *(
        "Refactor {}.",
        "Read the file {}.",
        "Open {}.",
        "Edit {} so that it will {}.",
        "Run the {} tests.",
    ),
    *(
        "Define {}.",
        "Solve {}.",
        "Calculate {}.",
        "Convert {} to {}.",
        "Prove that {} is {}.",
        "{}",
        "{}?",
    ),
    *(
        "{} {} {}.",
        "{}!",
        "The {} is {}.",
        "{} and {}",
        "If {}, then what?",
        "Why {}?",
        "How {}?",
        "Where is {}?",
    ),
)
_TOPICS = (
    *(
        "quantum mechanics",
        "the history of Rome",
        "photosynthesis",
        "machine learning",
        "black holes",
    ),
    *(
        "the French revolution",
        "music",
        "football",
        "chess",
        "bread",
        "coffee",
        "love",
        "a database",
    ),
    *(
        "the stock market",
        "Shakespeare",
        "Einstein",
        "Napoleon",
        "Python",
        "JavaScript",
        "Kubernetes",
    ),
    *("gravity", "the moon", "the sun", "an email", "a letter", "my car", "a recipe", "dinner"),
    *("artificial intelligence", "transformers", "neural networks", "the climate", "the internet"),
    *("a lion", "cats", "dogs", "my homework", "this text", "the following document", "the news"),
    *("a flight", "a hotel", "a restaurant", "the movie", "the book", "philosophy", "mathematics"),
    *("this equation", "x", "the world cup", "the president", "a bank", "my computer", "the law"),
)
_GIBBERISH = (
    string.ascii_letters + string.digits + string.punctuation + "éüñßçøждλπ中文字日本語한🙂🚀—…"
)
_FOREIGN = (
    *("Bonjour, pouvez-vous m'aider ?", "¿Qué tiempo hace?", "Wie spät ist es?", "Что это такое?"),
    *("Wie heißt du?", "¿Cómo estás?", "Où est la gare ?", "Dov'è la stazione?", "今天天气怎么样?"),
    *("ありがとう", "お元気ですか?", "Qual é o seu nome?", "مرحبا", "Hej, hur mår du?", "Merhaba"),
)


def _unheard(draw: random.Random) -> str:
    """A question nobody taught."""
    kind = draw.random()
    if kind < 0.6:
        opening = draw.choice(_OPENINGS)
        fill = [
            draw.choice(_TOPICS) if draw.random() < 0.4 else some(draw, WORDS, 1, 4)
            for _ in range(opening.count("{}"))
        ]
        text = opening.format(*fill)
        return said(draw, text[0].upper() + text[1:])
    if kind < 0.75:
        return some(draw, WORDS, 1, 30)
    if kind < 0.82:
        return " ".join(
            f"{some(draw, WORDS, 3, 12).capitalize()}." for _ in range(draw.randint(1, 5))
        )
    if kind < 0.92:
        return "".join(draw.choices(_GIBBERISH, k=draw.randint(1, 16)))
    if kind < 0.96:
        return " ".join(invented(draw) for _ in range(draw.randint(1, 4)))
    return draw.choice(_FOREIGN)


def unheard(draw: random.Random) -> Lesson:
    """A question the model cannot answer."""
    return Lesson((user(_unheard(draw)),), assistant(UNKNOWN))
