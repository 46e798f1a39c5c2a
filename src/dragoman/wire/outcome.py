"""Finds what an answer loses when it is said on another wire than it was heard on.

The counterpart of `loss.judge` for the way back, by the same table of fates. It looks at a whole
response; what a stream loses is the same, and known when it is over.
"""

from __future__ import annotations

from collections import Counter

from dragoman.core.item import (
    Audio,
    Compaction,
    Item,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.loss import Loss
from dragoman.core.response import Response

from .account import Account
from .policy import ANSWER


def judge_answer(response: Response, target: str) -> tuple[Loss, ...]:
    """What the answer loses on the target wire, in the words of the other one."""
    table = ANSWER.get(target)
    if table is None:  # who asked for a bare text has all there is to it
        return ()
    if target == "chat" and _is_plain(response):
        return ()
    account = Account(table, target)
    if target == "responses":
        _to_responses(response, account)
    else:
        _to_chat(response, account)
    account.unknown(response.extra, "")
    if response.usage is not None:
        account.unknown(response.usage.extra, "usage")
    return account.losses()


def _is_plain(response: Response) -> bool:
    """Whether an answer is one message with nothing in it that a wire might have no place for,
    and was heard on Chat, if on any wire."""
    match response.output:
        case (Message(phase=None, extra=None, content=(Text(annotations=(), extra=None),)),):
            pass
        case _:
            return False
    if response.status != "completed" or (response.usage and response.usage.extra):
        return False
    return response.extra is None or "responses" not in response.extra


def _choices(response: Response) -> tuple[int, ...]:
    return response.choices or (0,) * len(response.output)


# ---- towards Responses -----------------------------------------------------------------------

_SPLITS = {
    "input_audio_tokens": "prompt_tokens_details.audio_tokens",
    "input_text_tokens": "prompt_tokens_details.text_tokens",
    "input_image_tokens": "prompt_tokens_details.image_tokens",
    "output_audio_tokens": "completion_tokens_details.audio_tokens",
    "output_text_tokens": "completion_tokens_details.text_tokens",
    "accepted_prediction_tokens": "completion_tokens_details.accepted_prediction_tokens",
    "rejected_prediction_tokens": "completion_tokens_details.rejected_prediction_tokens",
}


def _to_responses(response: Response, account: Account) -> None:
    for item, choice in zip(response.output, _choices(response), strict=True):
        if choice:
            account.note("choices[*]: any further", choice)
        else:
            _item_to_responses(item, account)
    for name, field in _SPLITS.items():
        if response.usage is not None and getattr(response.usage, name) is not None:
            account.note(f"usage.{field}")


def _item_to_responses(item: Item, account: Account) -> None:
    parts = item.parts if isinstance(item, Message) else ()
    for part in item.content if isinstance(item, Reasoning) else parts:
        match part:
            case Thought(tokens=tokens) if tokens:
                account.note("choices[*].logprobs.content: of reasoning", 0)
            case Refusal(tokens=tokens) if tokens:
                account.note("choices[*].logprobs.refusal", 0)
            case Audio(transcript=transcript):
                how = "without" if transcript is None else "with"
                account.note(f"choices[*].message.audio: {how} a transcript", 0)
    account.unknown(item.extra, "choices[*].message", 0)


# ---- towards Chat ----------------------------------------------------------------------------


def _to_chat(response: Response, account: Account) -> None:
    if response.status == "incomplete" and not {"length", "content_filter"} & {*response.reasons}:
        account.note("incomplete_details.reason: any other")
    pairs = zip(response.output, _choices(response), strict=True)
    said = Counter(choice for item, choice in pairs if isinstance(item, Message))
    if any(count > 1 for count in said.values()):
        account.note("output: several messages")
    for index, item in enumerate(response.output):
        _item_to_chat(item, account, index)


def _item_to_chat(item: Item, account: Account, index: int) -> None:
    match item:
        case Message(phase=phase):
            if phase is not None:
                account.note("output[*].phase", index)
            for number, part in enumerate(item.parts):
                notes = part.annotations if isinstance(part, Text) else ()
                if any(note.kind != "url_citation" for note in notes):
                    account.note("output[*].content[*].annotations: any other", index, number)
        case Reasoning():
            if item.summary:
                beside = "beside the reasoning" if item.content else "alone"
                account.note(f"output[*].summary: {beside}", index)
            if item.encrypted is not None:
                account.note("output[*].encrypted_content", index)
        case Compaction():
            account.note("output[*]: compaction", index)
        case Unknown(wire=wire) if wire != "chat":
            account.note("output[*]: of another kind", index)
    account.unknown(item.extra, "output[*]", index)
