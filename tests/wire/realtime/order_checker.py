"""The order of server events, as a client that trusts nothing sees it. It knows none of our code.

The rules are those of the protocol: every life-cycle that opens closes, in brackets; an item of the
conversation is added behind an item that is there; one answer of the conversation at a time.
"""

from typing import Any

DELTAS = {
    "response.output_text.delta": "text",
    "response.output_audio.delta": "audio",
    "response.output_audio_transcript.delta": "audio",
}
CLOSING = {
    "response.output_text.done": ("text", "text"),
    "response.output_audio.done": ("audio", None),
    "response.output_audio_transcript.done": ("audio", "transcript"),
}


class Order:
    """Checks events one at a time; raises AssertionError at the first that may not come."""

    def __init__(self) -> None:
        self.begun = False
        self.over = False
        self.event_ids: set[str] = set()
        self.conversation: list[str] = []
        self.pending: set[str] = set()  # items that are added and not done
        self.answers: dict[str, dict[str, Any]] = {}  # those that are not over
        self.ended: set[str] = set()
        self.speaking = ""
        self.called: set[str] = set()  # calls by the server whose arguments are there

    def feed(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert not self.over, "nothing comes after the session has expired"
        assert event["event_id"] not in self.event_ids, "each event has an id of its own"
        self.event_ids.add(event["event_id"])
        assert self.begun == (kind != "session.created"), "session.created comes first, and once"
        self.begun = True
        if kind == "error":
            self.over = event["error"]["code"] == "session_expired"
        elif kind.startswith("conversation.item."):
            self.item(kind.removeprefix("conversation.item."), event)
        elif kind.startswith("input_audio_buffer."):
            self.buffer(kind.removeprefix("input_audio_buffer."), event)
        elif kind.startswith("response."):
            self.answer(kind, event)
        else:
            known = {"session.created", "session.updated", "conversation.created"}
            assert kind in known or kind.startswith("mcp_list_tools."), kind

    def item(self, what: str, event: dict[str, Any]) -> None:
        id = event["item_id"] if "item_id" in event else event["item"]["id"]
        match what:
            case "added":
                assert id not in self.conversation
                previous = event["previous_item_id"]
                place = 0 if previous is None else self.conversation.index(previous) + 1
                self.conversation.insert(place, id)
                self.pending.add(id)
            case "done":
                self.pending.remove(id)
                place = self.conversation.index(id)
                before = self.conversation[place - 1] if place else None
                assert event["previous_item_id"] == before
            case "deleted":
                assert id not in self.pending
                self.conversation.remove(id)
            case _:
                assert id in self.conversation, f"{what} of an item that is there"

    def buffer(self, what: str, event: dict[str, Any]) -> None:
        id = event.get("item_id")
        match what:
            case "speech_started":
                assert not self.speaking
                self.speaking = id or ""
            case "speech_stopped":
                assert id == self.speaking
            case "committed":
                assert self.speaking in ("", id)
                self.speaking = ""
                assert event["previous_item_id"] == (self.conversation or [None])[-1]
            case "cleared":
                self.speaking = ""
            case _:
                assert what == "timeout_triggered"
                assert not self.speaking

    def answer(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "response.created":
            response = event["response"]
            assert response["status"] == "in_progress"
            assert not response["output"]
            assert response["id"] not in self.answers.keys() | self.ended
            inside = response.get("conversation_id") is not None
            assert not inside or not any(a["inside"] for a in self.answers.values())
            self.answers[response["id"]] = {"inside": inside, "items": {}, "output": []}
            return
        if kind == "response.done":
            response = event["response"]
            answer = self.answers.pop(response["id"])
            self.ended.add(response["id"])
            assert not answer["items"], "items are done before their answer is"
            assert [item["id"] for item in response["output"]] == answer["output"]
            assert response["status"] in ("completed", "cancelled", "incomplete", "failed")
            assert response["status_details"]["type"] == response["status"]
            assert isinstance(response["usage"]["total_tokens"], int)
            if answer["inside"]:
                assert not self.pending & set(answer["output"])
            return
        if kind.startswith(("response.mcp_call.", "response.mcp_call_")):
            if kind == "response.mcp_call_arguments.done":
                self.called.add(event["item_id"])
            elif not kind.endswith(".delta"):
                assert event["item_id"] in self.called, "arguments come before the call"
            return
        answer = self.answers[event["response_id"]]
        items, index = answer["items"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(answer["output"]) + len(items)
            item = event["item"]
            assert not item.get("content")
            assert not item.get("arguments") or item["type"] == "mcp_approval_request"
            items[index] = {"id": item["id"], "parts": {}, "said": [], "count": 0}
            return
        item = items[index]
        if kind == "response.output_item.done":
            whole = items.pop(index)
            assert event["item"]["id"] == whole["id"]
            assert not whole["parts"]
            mcp = event["item"]["type"].startswith("mcp_")
            assert mcp or event["item"]["status"] in ("completed", "incomplete")
            if event["item"]["type"] == "function_call":
                assert event["item"]["arguments"] == "".join(whole["said"])
                assert whole["closed"]
            answer["output"].append(whole["id"])
            return
        assert event["item_id"] == item["id"]
        if kind == "response.function_call_arguments.delta":
            item["said"].append(event["delta"])
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == "".join(item["said"])
            item["closed"] = True
        elif kind == "response.content_part.added":
            assert event["content_index"] == item["count"]
            part = event["part"]
            assert not part.get("text")
            assert not part.get("transcript")
            item["parts"][event["content_index"]] = {"type": part["type"], "said": []}
            item["count"] += 1
        elif kind == "response.content_part.done":
            part = item["parts"].pop(event["content_index"])
            assert event["part"]["type"] == part["type"]
            said = event["part"].get("text" if part["type"] == "text" else "transcript")
            assert said == "".join(part["said"])
        else:
            part = item["parts"][event["content_index"]]
            if kind in DELTAS:
                assert part["type"] == DELTAS[kind]
                if not kind.endswith("audio.delta"):
                    part["said"].append(event["delta"])
            else:
                sense, field = CLOSING[kind]
                assert part["type"] == sense
                assert field is None or event[field] == "".join(part["said"])

    def close(self) -> None:
        """What was begun is over."""
        assert not self.answers
        assert not self.pending
