"""A server of recorded tokens in harmony: `python -m bench.replay PORT IDS.json [stream|function]`.

The model is played, so that what is left is the cost of the server: parsing, events, Responses.
The ids are given one at a time, by an asynchronous stream, or by a plain function on the model's
thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import dragoman
from dragoman.engines.token import TokenEngine, from_next_token, from_stream
from dragoman.formats.harmony import HARMONY
from dragoman.formats.prompt import ByteTokenizer, Tokenizer
from dragoman.server.settings import Settings

CONTROLS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
FOLDER = "TIKTOKEN_ENCODINGS_BASE"
"""Where gpt-oss's server looks for its vocabulary, and so do we."""
RANKS = "o200k_base.tiktoken"


def vocabulary() -> Tokenizer:
    """The vocabulary of gpt-oss, where it is here; else one token for each byte."""
    file = Path(os.environ.get(FOLDER, "")) / RANKS
    if not file.is_file():
        return ByteTokenizer(CONTROLS)
    from dragoman.engines.token.vocabulary import from_ranks

    return from_ranks(file)


def main() -> None:
    """Serve until killed."""
    port, ids = int(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())

    async def stream(prompt: list[int], sampling: object) -> AsyncGenerator[int, None]:
        for id in ids:
            await asyncio.sleep(0)  # as if each one came from somewhere
            yield id

    place = 0

    def next_token(tokens: list[int], temperature: float, new_request: bool) -> int:
        nonlocal place
        place = 0 if new_request else place + 1
        return int(ids[place])

    model = from_stream(stream) if sys.argv[3] == "stream" else from_next_token(next_token)
    engine = TokenEngine(HARMONY, model, vocabulary(), name="replay")
    dragoman.serve(engine, Settings(port=port, store="none"))


if __name__ == "__main__":
    main()
