"""An agent: a model with Python functions.

python examples/agent.py                                   # with the model in the package
python examples/agent.py http://127.0.0.1:11434/v1         # with a server of yours
"""

import sys
from typing import Annotated

from dragoman import Agent, ToolError, tool

STOCK = {"apples": 12, "pears": 0}


@tool
def get_weather(city: Annotated[str, "the name of a city"]) -> str:
    """Get the weather in a city."""
    return f"Sunny in {city}."


@tool
def count_stock(fruit: str) -> int:
    """Count what is left of a fruit."""
    if fruit not in STOCK:
        raise ToolError(f"There are only: {', '.join(STOCK)}.")
    return STOCK[fruit]


agent = Agent(
    sys.argv[1] if len(sys.argv) > 1 else "pocket",
    tools=[get_weather, count_stock],
    settings={"temperature": 0},
)
for city in ("Paris", "Rome"):  # each in a conversation of its own
    run = agent.branch().run_sync(f"What is the weather in {city}?")
    print(f"{run.text} ({len(run.output)} items)")

# Run, it prints:
#     The weather in Paris: sunny. (3 items)
#     The weather in Rome: sunny. (3 items)
