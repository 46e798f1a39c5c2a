"""The same recorded tokens behind the Responses server of the package gpt-oss.

`PYTHON replay_gpt_oss.py serve PORT IDS.json` serves them; `… parse IDS.json` prints the seconds
that the package's streaming parser takes for them. It runs in an environment of its own.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from openai_harmony import HarmonyEncodingName, Role, StreamableParser, load_harmony_encoding


def next_token(ids: list[int]) -> Callable[..., int]:
    place = 0

    def next_one(tokens: list[int], temperature: float = 0.0, new_request: bool = False) -> int:
        nonlocal place
        place = 0 if new_request else place + 1
        return ids[place]

    return next_one


def main() -> None:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    if sys.argv[1] == "serve":
        import uvicorn
        from gpt_oss.responses_api.api_server import create_api_server

        ids = json.loads(Path(sys.argv[3]).read_text())
        uvicorn.run(create_api_server(next_token(ids), encoding), port=int(sys.argv[2]))
        return
    ids = json.loads(Path(sys.argv[2]).read_text())
    best = float("inf")
    for _ in range(20):
        parser = StreamableParser(encoding, role=Role.ASSISTANT)
        begun = time.process_time()
        for id in ids:
            parser.process(id)
            _ = parser.last_content_delta
        best = min(best, time.process_time() - begun)
    print(best)


if __name__ == "__main__":
    main()
