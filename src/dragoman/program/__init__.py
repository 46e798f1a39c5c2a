"""Programs over any engine: roles, generated text, choices, grammars, captures, tools.

A model is an immutable value; texts and nodes are appended to it inside role blocks. What is
generated is bound by the strongest means that the engine has, and each capture says which.
"""

from dragoman.core.error import FaultError

from .build import (
    Tool,
    audio,
    capture,
    gen,
    gen_audio,
    grammar,
    image,
    json,
    lark,
    one_or_more,
    optional,
    regex,
    repeat,
    select,
    sequence,
    substring,
    token_limit,
    with_temperature,
    zero_or_more,
)
from .functions import Program, program
from .grammar import Match, match
from .history import Capture, assistant, block, role, system, user
from .means import ProgramError
from .model import Batch, Delta, Model, ModelStream
from .nodes import Node

__all__ = [
    "Batch",
    "Capture",
    "Delta",
    "FaultError",
    "Match",
    "Model",
    "ModelStream",
    "Node",
    "Program",
    "ProgramError",
    "Tool",
    "assistant",
    "audio",
    "block",
    "capture",
    "gen",
    "gen_audio",
    "grammar",
    "image",
    "json",
    "lark",
    "match",
    "one_or_more",
    "optional",
    "program",
    "regex",
    "repeat",
    "role",
    "select",
    "sequence",
    "substring",
    "system",
    "token_limit",
    "user",
    "with_temperature",
    "zero_or_more",
]
