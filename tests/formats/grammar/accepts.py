"""Whether a grammar takes a text, over a vocabulary of bytes and control tokens."""

import re

from dragoman.core.error import FaultError
from dragoman.engines.token.constraints import GrammarCompiler
from dragoman.formats.format import Grammar
from dragoman.formats.prompt import ByteTokenizer

_guides: dict[tuple[str, ...], GrammarCompiler] = {}


def guide(*controls: str) -> GrammarCompiler:
    """The guide for these control tokens."""
    return _guides.setdefault(controls, GrammarCompiler(ByteTokenizer(controls)))


def ids(text: str, *controls: str) -> list[int]:
    """The ids of a text in which control tokens stand as such."""
    known = ByteTokenizer(controls).controls
    pieces = re.split(f"({'|'.join(map(re.escape, controls))})" if controls else "(?!)", text)
    return [id for piece in pieces for id in ([known[piece]] if piece in known else piece.encode())]


def verdict(grammar: Grammar, text: str, *controls: str) -> str:
    """`whole` if a text is an answer, `begun` if it may become one, else where it went wrong."""
    motion = guide(*controls).constrain(grammar)
    said = ids(text, *controls)
    for place, id in enumerate(said):
        try:
            motion.accept([id])
        except FaultError:
            before = bytes(i for i in said[:place] if i < 256).decode(errors="replace")
            return f"wrong after {before[-30:]!r}"
    return "whole" if motion.accepting else "begun"
