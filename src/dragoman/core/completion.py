"""A request without a conversation: bare prompts, to be gone on from.

It is a request like any other, with a model, a way to sample and a limit; only where others have
items it has prompts. What a control token is, or an id stands for, the model's own side knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from .request import Request

Prompt = str | tuple[int, ...]
"""Text, in which control tokens count as such, or token ids."""


class Completion(Request, frozen=True, omit_defaults=True, kw_only=True):
    """Prompts that share a request. Each has `n` choices of the answer, in order of the prompts.

    With `echo` the answer repeats the prompt first, and a limit of 0 tokens makes sense.

    >>> Completion(model="m", prompts=("Once upon",), max_output_tokens=8).prompts
    ('Once upon',)
    """

    prompts: tuple[Prompt, ...] = ()
    echo: bool = False


def prompted(
    request: Request, prompts: Sequence[str | Sequence[int]], *, echo: bool = False
) -> Completion:
    """The request, asked of these prompts.

    >>> prompted(Request(model="m"), ["Once", [1, 2]]).prompts
    ('Once', (1, 2))
    """
    said = tuple(each if isinstance(each, str) else tuple(each) for each in prompts)
    return Completion(**asdict(request) | {"prompts": said, "echo": echo})
