"""What the model was taught, asked through the whole engine: template, network, sampler, parser.

Every case of the suite is answered word for word when the choice is greedy; whoever trains the
model again has to pass this.
"""

import asyncio

import pytest

from dragoman.core.response import Response
from dragoman.engines.pocket import pocket
from tests.engines.asking import ask
from tests.engines.pocket.asking import expected, heard, request_of
from training.pocket.suite import CASES, Case

FREE = [case for case in CASES if not case.lesson.forced]


@pytest.fixture(scope="module")
def answers() -> dict[str, Response]:
    """The answers to all cases, asked for at the same time."""

    async def answer() -> list[Response]:
        engine = pocket()
        try:
            return await asyncio.gather(*(ask(engine, request_of(case.lesson)) for case in FREE))
        finally:
            await engine.close()

    return dict(zip((case.name for case in FREE), asyncio.run(answer()), strict=True))


@pytest.mark.parametrize("case", FREE, ids=lambda case: case.name)
def test_the_suite_is_answered_word_for_word(case: Case, answers: dict[str, Response]) -> None:
    response = answers[case.name]
    assert heard(response) == expected(case.lesson)
    assert response.status == "completed"
