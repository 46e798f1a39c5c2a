"""A function that returns the next token, as a server for Responses and Chat Completions.

python examples/next_token.py           # one request, in this process
python examples/next_token.py serve     # serves it at http://127.0.0.1:8000/v1
"""

import sys

import dragoman
from dragoman.core.request import Sampling
from dragoman.engines.token import TokenEngine, from_next_token
from dragoman.formats.harmony import HARMONY
from dragoman.formats.prompt import ByteTokenizer

BYTES = ByteTokenizer(["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
ANSWER = [BYTES.controls["<|channel|>"], *b"final", BYTES.controls["<|message|>"]]


def next_token(ids: list[int], sampling: Sampling) -> int:
    """Reverses the user's text: takes all ids so far, returns the next id."""
    first = max(at for at, id in enumerate(ids) if id == BYTES.controls["<|start|>"])
    text = bytes(id for id in ids[:first] if id < 256).rpartition(b"user")[2]
    answer: list[int] = [*ANSWER, *text[::-1], BYTES.controls["<|return|>"]]
    return answer[len(ids) - first - len("?assistant")]


engine = TokenEngine(HARMONY, from_next_token(next_token), BYTES, name="backwards")

if sys.argv[1:] == ["serve"]:
    dragoman.serve(engine)
else:
    import httpx2
    import openai

    http = httpx2.Client(transport=dragoman.transport(engine))
    with openai.OpenAI(base_url="http://dragoman/v1", api_key="none", http_client=http) as client:
        response = client.responses.create(model="backwards", input="!dlrow olleh")
        print(response.output_text)
        if response.usage is not None:
            print(response.usage.output_tokens, "tokens")

# Run, it prints:
#     hello world!
#     20 tokens
