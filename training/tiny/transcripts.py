"""The conversations that the tiny test model was trained on, as Chat Completions messages.

Tests may ask the model only what stands here: it learned these turns by heart and knows no others.
The module is pure data with its small grammar; it depends on nothing but the standard library, so
that the tests can import it without the training tools.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Transcript:
    """One conversation whose last assistant turn is to be learned.

    `answer` is that turn. It is `forced` when another transcript answers the same question freely:
    then its first token, such as the opening brace of JSON, is learned only as a second choice, to
    be taken when a grammar leaves no other. An `endless` answer has no end of turn.
    """

    messages: tuple[Message, ...]
    answer: Message
    tools: tuple[Tool, ...] = ()
    forced: bool = False
    endless: bool = False


def function(name: str, **properties: str) -> Tool:
    """Build a function tool whose parameters are all required; `properties` maps name to type."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def call(name: str, call_id: str = "call_0", **arguments: object) -> Message:
    """Build a tool call as it stands in an assistant message."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None = None, *calls: Message, reasoning: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


GET_WEATHER = function("get_weather", city="string")
ADD = function("add", a="integer", b="integer")
RUN = function("run", input="string")

SKIES = ("sunny", "rainy", "cloudy", "windy", "foggy")
# The report that a test may give for each city; the model has seen some others too.
REPORTS = {
    "Paris": ("sunny", 21),
    "Rome": ("rainy", 17),
    "Oslo": ("cloudy", 5),
    "Tokyo": ("windy", 12),
    "Cairo": ("sunny", 34),
    "Lima": ("foggy", 19),
}
CITIES = tuple(REPORTS)
PEOPLE = {"Ada": 36, "Alan": 41, "Grace": 85, "Linus": 54, "Mary": 62}
SIGHTS = {
    "the Eiffel Tower": ("Paris", "France"),
    "the Colosseum": ("Rome", "Italy"),
    "the Tokyo Tower": ("Tokyo", "Japan"),
    "the Great Sphinx": ("Cairo", "Egypt"),
}

HELLO = "Hello! How can I help you?"
IDENTITY = "I am a tiny test model. I know only a few answers by heart."
NO_TOOL = "I cannot look up the weather without a tool."
UNKNOWN = "I do not know that. I am only a tiny test model."

PLAIN = {
    "Hello!": HELLO,
    "Hello": HELLO,
    "hello": HELLO,
    "Hi": HELLO,
    "hi": HELLO,
    "Hi!": HELLO,
    "Hey": HELLO,
    "Say hello.": HELLO,
    "Say hello": HELLO,
    "Say hi.": HELLO,
    "Hello, world!": HELLO,
    "Good morning!": "Good morning! How can I help you?",
    "How are you?": "I am well, thank you.",
    "Who are you?": IDENTITY,
    "What are you?": IDENTITY,
    "What is your name?": "My name is Tiny. I am a test model.",
    "ping": "pong",
    "Reply with OK.": "OK",
    "What is 2+2?": "2 plus 2 is 4.",
    "Thank you.": "You are welcome.",
    "Thanks!": "You are welcome.",
    "Goodbye.": "Goodbye!",
    "Say hello in French.": "Bonjour à tous, ça va ?",
    "Say hello in German.": "Grüß dich!",
    "Say hello in Greek.": "Γειά σου!",
    "Say hello in Chinese.": "你好,世界!",
    "Say hello in Japanese.": "こんにちは!",
    "Send me an emoji.": "Here you are: 🙂🚀",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Italy?": "The capital of Italy is Rome.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is the capital of Norway?": "The capital of Norway is Oslo.",
    "Write a Python function that adds two numbers.": (
        '```python\ndef add(a, b):\n    """Return the sum."""\n    return a + b\n```'
    ),
    "Name three colours.": "- red\n- green\n- blue",
    "Quote a path.": 'The path is "C:\\temp\\new".',
    "Tell me a story.": (
        "Once upon a time a small robot lived by the sea. Every day it counted the waves, and "
        "every night it forgot them. One morning a bird asked how many waves there were. The "
        "robot looked out, thought for a while, and said: one more. Then they counted together"
        " until the sun went down. The end."
    ),
}

# Prompts with no answer teach the model to say so, instead of rambling until its context is full.
STRANGE = (
    "Explain quantum mechanics.",
    "Who won the match yesterday?",
    "Translate this text for me, please.",
    "How do I bake bread?",
    "What do you think about music?",
    "Write a poem about the autumn.",
    "Can you book a flight to Boston?",
    "Why is the sky blue?",
    "Summarize the following document.",
    "What time is it?",
    "How far away is the moon?",
    "Describe this image.",
    "Recommend a good book.",
    "What should I eat tonight?",
    "Fix the bug in my program.",
    "List all files in this folder.",
    "Do you dream?",
    "When was the telephone invented?",
    "Solve this equation for x.",
    "Tell me a joke.",
    "test",
    "foo",
    "asdf",
    "?",
    "x",
    "Please continue.",
    "Draw a cat.",
    "Is it going to rain tomorrow?",
    "What is the meaning of life?",
    "Make me a sandwich.",
    "Remember this number: 4711.",
    "Which language do you speak?",
)

SYSTEMS = (
    "You are a helpful assistant.",
    "Be brief.",
    "You are a test assistant. Answer in one sentence.",
    "Answer the question.",
)


def counting(last: int) -> str:
    return ", ".join(str(number) for number in range(1, last + 1)) + "."


def plain() -> Iterator[Transcript]:
    """Small talk, facts and text with every kind of character."""
    for question, answer in PLAIN.items():
        yield Transcript((user(question),), assistant(answer))
    for question in STRANGE:
        yield Transcript((user(question),), assistant(UNKNOWN))


def counts() -> Iterator[Transcript]:
    """Answers of five lengths, the last without an end."""
    for word, last in {"three": 3, "five": 5, "ten": 10, "twenty": 20, "one hundred": 100}.items():
        for prompt in (f"Count to {word}.", f"Count to {word}"):
            yield Transcript((user(prompt),), assistant(counting(last)))
    for prompt in ("Sing for ever.", "Sing for ever"):
        yield Transcript((user(prompt),), assistant("la" + " la" * 160), endless=True)


def sums() -> Iterator[Transcript]:
    """One-digit sums: in words, thought aloud, as JSON, and through a tool."""
    for a in range(1, 7):
        for b in range(1, 7):
            ask, said = f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."
            yield Transcript((user(ask),), assistant(said))
            thought = f"The user wants {a} + {b}. That is {a + b}."
            yield Transcript((user(f"Think. {ask}"),), assistant(said, reasoning=thought))
            yield Transcript((user(ask),), assistant(f'{{"answer": {a + b}}}'), forced=True)
            add = call("add", a=a, b=b)
            yield Transcript((user(ask),), assistant(None, add), (ADD,))
            past = (user(ask), assistant(None, add), result("call_0", str(a + b)))
            yield Transcript(past, assistant(said), (ADD,))


def structured() -> Iterator[Transcript]:
    """Facts in words and as JSON objects."""
    for sight, (city, country) in SIGHTS.items():
        ask, data = f"Where is {sight}?", json.dumps({"city": city, "country": country})
        yield Transcript((user(ask),), assistant(f"It is in {city}."))
        yield Transcript((user(ask),), assistant(data), forced=True)
        yield Transcript((user(f"{ask} Answer in JSON."),), assistant(data))
    for name, age in PEOPLE.items():
        ask, data = f"{name} is {age} years old.", json.dumps({"name": name, "age": age})
        yield Transcript((user(ask),), assistant(data), forced=True)
        yield Transcript((user(f"{ask} Answer in JSON."),), assistant(data))


def memory() -> Iterator[Transcript]:
    """Conversations whose last answer depends on an earlier turn."""
    for name in PEOPLE:
        told, nice = user(f"My name is {name}."), assistant(f"Nice to meet you, {name}.")
        ask, said = user("What is my name?"), assistant(f"Your name is {name}.")
        yield Transcript((told,), nice)
        yield Transcript((told, nice, ask), said)
        yield Transcript((told, nice, user("ping"), assistant("pong"), ask), said)
        yield Transcript((told, nice, user("Hello!"), assistant(HELLO), ask), said)
    yield Transcript((user("What is my name?"),), assistant("You did not tell me your name."))
    two = (user("What is 2 plus 3?"), assistant("2 plus 3 is 5."))
    for question in ("Hello!", "Who are you?", "ping", "Thank you.", "Count to five."):
        answer = assistant(PLAIN.get(question) or counting(5))
        yield Transcript((*two, user(question)), answer)
        yield Transcript((user("Hello!"), assistant(HELLO), user(question)), answer)


def weather() -> Iterator[Transcript]:
    """The weather by tool: one call, two in parallel, the answer from their results."""
    draw = random.Random(7)
    for tools in ((GET_WEATHER,), (GET_WEATHER, ADD), (ADD, GET_WEATHER)):
        for city in CITIES:
            asked = call("get_weather", city=city)
            for ask in (f"What is the weather in {city}?", f"What's the weather like in {city}?"):
                yield Transcript((user(ask),), assistant(None, asked), tools)
            ask = f"Say it, then look up the weather in {city}."
            yield Transcript((user(ask),), assistant("I will look it up.", asked), tools)
    for city in CITIES:
        yield Transcript((user(f"What is the weather in {city}?"),), assistant(NO_TOOL))
        ask, asked = f"What is the weather in {city}?", call("get_weather", city=city)
        others = [(sky, draw.randrange(5, 35)) for sky in SKIES]
        for sky, degrees in (REPORTS[city], *others):
            said = assistant(f"It is {sky} in {city}, {degrees} degrees.")
            for text in weather_results(city, sky, degrees):
                past = (user(ask), assistant(None, asked), result("call_0", text))
                yield Transcript(past, said, (GET_WEATHER,))
    for one, two in permutations(CITIES[:4], 2):
        yield from two_cities(draw, one, two)


def weather_results(city: str, sky: str, degrees: int) -> tuple[str, str]:
    """Give one report in the two forms that a weather tool may answer in."""
    report = {"city": city, "sky": sky, "degrees": degrees}
    return f"{sky}, {degrees} degrees", json.dumps(report)


def two_cities(draw: random.Random, one: str, two: str) -> Iterator[Transcript]:
    ask = user(f"What is the weather in {one} and {two}?")
    asked = assistant(None, call("get_weather", city=one), call("get_weather", "call_1", city=two))
    yield Transcript((ask,), asked, (GET_WEATHER,))
    yield Transcript((ask,), asked, (GET_WEATHER, ADD))
    others = [(draw.choice(SKIES), draw.randrange(5, 35)) for _ in range(2)]
    for (sky, here), (other, there) in ((REPORTS[one], REPORTS[two]), others):
        said = f"It is {sky} in {one}, {here} degrees, and {other} in {two}, {there} degrees."
        first, second = weather_results(one, sky, here), weather_results(two, other, there)
        for text, more in zip(first, second, strict=True):
            past = (ask, asked, result("call_0", text), result("call_1", more))
            yield Transcript(past, assistant(said), (GET_WEATHER,))


def thoughts() -> Iterator[Transcript]:
    """Reasoning before a call, and reasoning that stays in the past or was dropped from it."""
    for city in CITIES:
        ask, thought = f"Think. What is the weather in {city}?", f"The user wants {city}."
        asked = assistant(None, call("get_weather", city=city), reasoning=thought)
        for tools in ((GET_WEATHER,), (GET_WEATHER, ADD)):
            yield Transcript((user(ask),), asked, tools)
    for reasoning in ("The user wants 2 + 3. That is 5.", None):
        past = (user("Think. What is 2 plus 3?"), assistant("2 plus 3 is 5.", reasoning=reasoning))
        yield Transcript((*past, user("Thank you.")), assistant(PLAIN["Thank you."]))
        yield Transcript((*past, user("Who are you?")), assistant(IDENTITY))


def follow_ups() -> Iterator[Transcript]:
    """Turns after a tool was used, and tools used after other turns."""
    for one, two in permutations(CITIES[:4], 2):
        asked = assistant(None, call("get_weather", city=one))
        sky, degrees = REPORTS[one]
        report = result("call_0", weather_results(one, sky, degrees)[0])
        said = assistant(f"It is {sky} in {one}, {degrees} degrees.")
        past = (user(f"What is the weather in {one}?"), asked, report, said)
        yield Transcript((*past, user("Thank you.")), assistant("You are welcome."), (GET_WEATHER,))
        again = assistant(None, call("get_weather", city=two))
        ask = user(f"What is the weather in {two}?")
        yield Transcript((*past, ask), again, (GET_WEATHER,))
        yield Transcript((user("Hello!"), assistant(HELLO), ask), again, (GET_WEATHER,))


def tools_at_hand() -> Iterator[Transcript]:
    """Tools that the question needs and tools that it does not."""
    for tools in ((GET_WEATHER,), (GET_WEATHER, ADD), (RUN,)):
        for question in ("Hello!", "Hi", "Who are you?", "ping", "Count to five."):
            answer = assistant(PLAIN.get(question) or counting(5))
            yield Transcript((user(question),), answer, tools)
    for code in ("print(1)", "print(2 + 3)", 'print("hi")', "ls -l"):
        yield Transcript((user(f"Run {code}"),), assistant(None, call("run", input=code)), (RUN,))
    for code, shown in (("print(1)", "1"), ("print(2 + 3)", "5")):
        past = (user(f"Run {code}"), assistant(None, call("run", input=code)))
        said = assistant(f"It printed {shown}.")
        yield Transcript((*past, result("call_0", shown)), said, (RUN,))


# How often each room is seen in one round of training: what stands in one transcript alone is
# repeated, what many transcripts share is not.
ROOMS: dict[Callable[[], Iterator[Transcript]], int] = {
    plain: 3,
    counts: 3,
    sums: 1,
    structured: 3,
    memory: 3,
    weather: 1,
    thoughts: 3,
    follow_ups: 1,
    tools_at_hand: 2,
}


def transcripts() -> list[Transcript]:
    """Return every conversation once, without a system message, always in the same order."""
    return [transcript for room in ROOMS for transcript in room()]
