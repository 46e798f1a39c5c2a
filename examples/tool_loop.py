"""A loop over tools, by hand: ask, run what the model asks for, tell it what came out, ask again.

Works with any engine; here with the rehearsal, which calls a tool that the question is about.
"""

import asyncio

import dragoman
from dragoman.client import arguments

WEATHER = dragoman.FunctionTool(
    "get_weather",
    "Today's weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
MOST_ROUNDS = 5


def get_weather(city: str) -> str:
    return f"18 degrees and sunny in {city}"


async def main() -> None:
    items: list = [dragoman.Message("user", "What is the weather in Paris?")]
    async with dragoman.connect("script") as client:
        for _ in range(MOST_ROUNDS):
            answer = await client.respond(items, tools=[WEATHER])
            items += answer.output  # calls, text and reasoning go back as they came
            if not answer.calls:
                break
            for call in answer.calls:
                print(f"{call.name}({call.arguments})")
                try:
                    result = get_weather(**arguments(call))
                except (TypeError, dragoman.FaultError) as error:
                    result = f"This cannot be called so: {error}"  # the model may try again
                items.append(dragoman.FunctionCallOutput(call.call_id, result))
        print(answer.text)


asyncio.run(main())

# Run, it prints:
#     get_weather({"city": "Paris"})
#     This is a rehearsal, not a model. The tools have answered: get_weather returned 18 degrees and
#     sunny in Paris. Put a model behind me with `dragoman serve --upstream URL`, and it will answer
#     instead.
