"""A tool loop: ask the model, run the tools it calls, return their outputs, ask again.

Works with any engine; here with the demo engine, which calls the tool that fits the question.
"""

import asyncio

import dragoman

WEATHER = dragoman.FunctionTool(
    "get_weather",
    "Today's weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
MAX_ROUNDS = 5


def get_weather(city: str) -> str:
    return f"18 degrees and sunny in {city}"


async def main() -> None:
    items: list[dragoman.Item] = [dragoman.Message("user", "What is the weather in Paris?")]
    async with dragoman.connect("script") as client:
        for _ in range(MAX_ROUNDS):
            answer = await client.respond(items, tools=[WEATHER])
            items += answer.output  # calls, text and reasoning go back unchanged
            if not answer.function_calls:
                break
            for call in answer.function_calls:
                print(f"{call.name}({call.arguments})")
                try:
                    result = get_weather(**dragoman.arguments(call))
                except (TypeError, dragoman.FaultError) as error:
                    result = f"Invalid call: {error}"  # the model may try again
                items.append(dragoman.FunctionCallOutput(call.call_id, result))
        print(answer.text)


asyncio.run(main())

# Run, it prints:
#     get_weather({"city": "Paris"})
#     This is a demo, not a model. The tools have answered: get_weather returned 18 degrees and
#     sunny in Paris. Put a model behind me with `dragoman serve --upstream URL`, and it will answer
#     instead.
