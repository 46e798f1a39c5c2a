"""The official SDK as a client of given bytes: no network, no server, the SDK's own reading.

`httpx2` is what the SDK speaks HTTP with; its mock transport hands it an answer. What the SDK
makes of the answer is for the tests to judge.
"""

import httpx2
import openai


def client(answer: bytes, status: int = 200) -> openai.OpenAI:
    """A client to which every request is answered with these bytes: JSON, or else a stream."""
    kind = "application/json" if answer.startswith(b"{") else "text/event-stream"

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=answer, headers={"content-type": kind})

    transport = httpx2.MockTransport(respond)
    return openai.OpenAI(
        api_key="none",
        base_url="http://loopback.test/v1",
        http_client=httpx2.Client(transport=transport),
        max_retries=0,
    )
