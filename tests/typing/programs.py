"""What the types of programs promise their users; mypy reads this, and nothing runs it."""

from typing import assert_type

from dragoman.program import (
    Delta,
    Model,
    ModelStream,
    Node,
    Program,
    assistant,
    gen,
    match,
    program,
    select,
    user,
)


@program
def ask(lm: Model, question: str) -> Model:
    with user():
        lm += question
    with assistant():
        return lm + gen("answer")


async def later(lm: Model) -> Model:
    async with assistant():
        assert_type(lm.stream(gen("x")), ModelStream[Model])
        async for delta in lm.stream("x"):
            assert_type(delta, Delta)
        models = await lm.batch([gen("x")])
        assert_type(models, list[Model])
        return await lm.run("So: ", select(["a", 1], name="x"))


def now() -> None:
    assert_type(ask, Program)
    assert_type(gen("x") + "y", Node)
    assert_type("y" + gen("x"), Node)
    lm = Model("script", temperature=0) + ask("Who?")
    assert_type(lm, Model)
    for delta in lm.stream(gen("x")):
        assert_type(delta.model, Model)
    found = match(gen("x", regex="a"), "a")
    print(found["x"] if found is not None else None, lm.guarantee("x"), lm.usage.round_trips)
