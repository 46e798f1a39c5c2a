"""The response object: what a request asked for, repeated, and what has come of it so far.

One function renders all of them: the snapshots in a stream, its last word, and the plain answer,
so that they cannot differ. Every snapshot has every field; one that was not asked for has the
protocol's default.
"""

from __future__ import annotations

from dragoman.core.error import Code, Fault
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
)
from dragoman.core.request import Request, TextFormat
from dragoman.core.response import Response
from dragoman.wire import error

from . import items, request, tools, usage
from .extras import dense, kept

PREFIX = "resp_"
"""What an id begins with on this wire."""

CODES = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    }
)
"""All that the code of a failed response can be."""

_CODES: dict[Code, str] = {
    "rate_limited": "rate_limit_exceeded",
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
}

_PREFIXES: dict[type, str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
}

REASONS = {"length": "max_output_tokens"}
"""Finish reasons that are called otherwise in `incomplete_details`."""

_SHORT = frozenset({"length", "content_filter"})


def echo(asked: Request) -> dict[str, JSON]:
    """The fields of a response that repeat its request."""
    sampling, thinking = asked.sampling, asked.reasoning
    shown = [tools.echo(tool) for tool in asked.tools]
    text = {"format": tools.encode_format(asked.format or TextFormat(), full=True)}
    return {
        "background": bool(asked.background),
        "instructions": request.encode_instructions(asked),
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {
            "effort": thinking.effort if thinking else None,
            "summary": thinking.summary if thinking else None,
            **(kept(thinking.extra) if thinking else {}),
        },
        "safety_identifier": asked.safety_identifier,
        "service_tier": asked.service_tier or "default",
        "store": bool(asked.store),
        "temperature": _or(sampling.temperature, 1.0),
        "text": {**text, **dense({"verbosity": asked.verbosity})},
        "tool_choice": tools.encode_choice(asked.tool_choice or "auto"),
        "tools": [tool for tool in shown if tool is not None],
        "top_logprobs": _or(sampling.top_logprobs, 0),
        "top_p": _or(sampling.top_p, 1.0),
        "presence_penalty": _or(sampling.presence_penalty, 0.0),
        "frequency_penalty": _or(sampling.frequency_penalty, 0.0),
        "truncation": asked.truncation or "disabled",
        "metadata": asked.metadata or {},
        **dense({"conversation": _conversation(asked)}),
        **dense({"user": asked.user, "prompt_cache_retention": asked.prompt_cache_retention}),
    }


def _conversation(asked: Request) -> JSON:
    given = asked.conversation
    return {"id": given} if isinstance(given, str) else given


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def render(response: Response, repeated: dict[str, JSON]) -> dict[str, JSON]:
    """The response object. `repeated` is the `echo` of its request."""
    completed_at = response.completed_at
    if response.status != "completed":
        completed_at = None
    elif completed_at is None:
        completed_at = response.created_at
    return {
        "id": PREFIX + response.id,
        "object": "response",
        "created_at": response.created_at,
        "status": response.status,
        "completed_at": completed_at,
        "error": None if response.error is None else render_error(response.error),
        "incomplete_details": _incomplete(response),
        "model": response.model,
        "output": _output(response),
        "usage": usage.encode(response.usage),
        **repeated,
        **kept(response.extra),
    }


def _output(response: Response) -> list[dict[str, JSON]]:
    said = (
        items.encode_output(item, item_id(item, response.id, index))
        for index, item in enumerate(response.output)
    )
    return [item for item in said if item is not None]


def item_id(item: Item, response_id: str, index: int) -> str:
    """The item's own id, or one derived from where it stands."""
    return item.id or f"{_PREFIXES.get(type(item), 'item')}_{response_id}_{index}"


def _incomplete(response: Response) -> JSON:
    if response.status != "incomplete":
        return None
    reason = next((r for r in response.reasons if r in _SHORT), (*response.reasons, "length")[0])
    return {"reason": REASONS.get(reason, reason)}


def render_error(fault: Fault) -> dict[str, JSON]:
    """The error of a failed response: a code from the protocol's closed list, and the words."""
    told = error.error_object(fault)
    code = told["code"]
    if code not in CODES:
        code = "rate_limit_exceeded" if fault.status == 429 else _CODES.get(fault.code)
    named = dense({"type": told["type"], "param": told["param"]})
    return {"code": code or "server_error", "message": fault.message, **named}


FIELDS = frozenset(
    render(Response(id="", created_at=0, model="", status="completed"), echo(Request(model="")))
) | {"conversation", "output_text", "prompt_cache_retention", "user"}
"""The fields of a response that we have words for."""
