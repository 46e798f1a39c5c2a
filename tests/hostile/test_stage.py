"""The stage itself: what it measures is there to be measured."""

from __future__ import annotations

import json

from tests.hostile.stage import gateway, watched
from tests.mock import completion, plain


def test_ordinary_requests_cost_others_nothing() -> None:
    with gateway(lambda _: plain(200, completion({"content": "ok"}))) as (server, model):
        with watched(server) as cost:
            for _ in range(20):
                answer = server.post(
                    "chat", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                )
                assert answer.status == 200, answer.body
        assert cost.pause < 0.5
        assert cost.grown < 50
        assert len(model.asked) >= 20
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == "ok"
