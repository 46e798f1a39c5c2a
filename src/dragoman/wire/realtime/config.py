"""The configuration of sessions and answers, decoded and encoded; and answers as objects."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.error import quoted
from dragoman.core.item import JSON
from dragoman.core.request import ReasoningOptions
from dragoman.core.response import Usage
from dragoman.core.session_values import (
    AudioFormat,
    Changes,
    SessionConfig,
    SessionResponse,
    Transcription,
    TurnDetection,
)
from dragoman.wire import json
from dragoman.wire.error import describe, error_object
from dragoman.wire.json import Fields, dense
from dragoman.wire.losses import header
from dragoman.wire.tools import ToolCodec, without_secrets

from .items import WIRE, decode_item, encode_item, to_extra

_TOOLS = ToolCodec(WIRE, nested=False)

FORMATS: dict[str, AudioFormat] = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "pcmu",
    "audio/pcma": "pcma",
}
_FORMAT_NAMES = {format: name for name, format in FORMATS.items()}
DETECTIONS = ("server_vad", "semantic_vad")
EAGERNESS = ("low", "medium", "high", "auto")
MODALITIES = ("text", "audio")
PCM_RATE = 24_000
SPEEDS = 0.25, 1.5
IDLE_MS = 5_000, 30_000
MAX_PADDING_MS = 10_000
"""Milliseconds of padding, or of silence, that a detector may be asked for."""


# ---- configurations: decoding --------------------------------------------------------------------


def decode_config(fields: Fields) -> Changes:
    """The fields of a session's configuration that are given, by their names in the core. An
    absent field stays; null turns off what can be off. Raises FaultError."""
    given = fields.left()
    changes: Changes = {}
    kind = fields.one_of("type", ("realtime", "transcription"))
    if kind is not None:
        changes["kind"] = kind
    for name in ("id", "object", "expires_at", "client_secret"):  # of a session that is sent back
        fields.any(name)
    if (model := fields.string("model")) is not None:
        changes["model"] = model
    changes |= _common(fields, given)
    if (audio := fields.object("audio")) is not None:
        if (input := audio.object("input")) is not None:
            changes |= _decode_input(input)
        if (output := audio.object("output")) is not None:
            changes |= _decode_output(output)
    if (truncation := fields.any("truncation")) is not None:
        changes["truncation"] = truncation
    if "tracing" in given:
        changes["tracing"] = fields.any("tracing")
    if (include := fields.strings("include")) is not None:
        changes["include"] = include
    if rest := fields.rest():
        changes["extra"] = to_extra(rest)
    return changes


def _common(fields: Fields, given: dict[str, JSON]) -> Changes:
    """The fields that a session and a single response have in common."""
    changes: Changes = {}
    if (instructions := fields.string("instructions")) is not None:
        changes["instructions"] = instructions
    if (modalities := fields.strings("output_modalities")) is not None:
        for number, each in enumerate(modalities):
            if each not in MODALITIES:
                problem = f"is {quoted(each)}, and must be 'text' or 'audio'"
                raise fields.wrong(f"output_modalities[{number}]", problem)
        changes["modalities"] = ("audio",) if "audio" in modalities else ("text",)
    if (tools := fields.array("tools")) is not None:
        listed = Fields({"tools": tools}, fields.path)
        changes["tools"] = tuple([_TOOLS.decode(tool) for tool in listed.objects("tools")])
    if (choice := fields.any("tool_choice")) is not None:
        changes["tool_choice"] = _TOOLS.decode_choice(choice)
    if (parallel := fields.boolean("parallel_tool_calls")) is not None:
        changes["parallel_tool_calls"] = parallel
    if (reasoning := fields.object("reasoning")) is not None:
        effort = reasoning.string("effort")
        changes["reasoning"] = ReasoningOptions(effort, extra=to_extra(reasoning.rest()))
    if given.get("max_output_tokens") == "inf":
        fields.any("max_output_tokens")
        changes["max_output_tokens"] = None
    elif (most := fields.integer("max_output_tokens", 1)) is not None:
        changes["max_output_tokens"] = most
    if (temperature := fields.number("temperature", 0, 2)) is not None:
        changes["temperature"] = temperature
    if "prompt" in given:
        changes["prompt"] = fields.mapping("prompt")
    return changes


def _decode_input(fields: Fields) -> Changes:
    given = fields.left()
    changes: Changes = {}
    if (format := _decode_format(fields)) is not None:
        changes["input_format"] = format
    if "transcription" in given:
        inner = fields.object("transcription")
        changes["transcription"] = None if inner is None else _decode_transcription(inner)
    if "noise_reduction" in given:
        changes["noise_reduction"] = fields.mapping("noise_reduction")
    if "turn_detection" in given:
        inner = fields.object("turn_detection")
        changes["turn_detection"] = None if inner is None else _decode_detection(inner)
    return changes


def _decode_output(fields: Fields) -> Changes:
    changes: Changes = {}
    if (format := _decode_format(fields)) is not None:
        changes["output_format"] = format
    if (voice := fields.any("voice")) is not None:
        if not isinstance(voice, str | dict):
            raise fields.wrong("voice", f"is {json.kind(voice)}, and must be a name or an object")
        changes["voice"] = voice
    if (speed := fields.number("speed", *SPEEDS)) is not None:
        changes["speed"] = speed
    return changes


def _decode_format(fields: Fields) -> AudioFormat | None:
    if (inner := fields.object("format")) is None:
        return None
    name = inner.one_of("type", FORMATS) or "audio/pcm"
    rate = inner.integer("rate")
    if name == "audio/pcm" and rate not in (None, PCM_RATE):
        raise inner.wrong("rate", f"is {rate}, and must be {PCM_RATE}")
    return FORMATS[name]


def _decode_transcription(fields: Fields) -> Transcription:
    model, language = fields.string("model"), fields.string("language")
    prompt = fields.string("prompt")
    rest = to_extra(fields.rest())
    return Transcription(model=model, language=language, prompt=prompt, extra=rest)


def _decode_detection(fields: Fields) -> TurnDetection:
    kind: Any = fields.one_of("type", DETECTIONS) or DETECTIONS[0]
    values: dict[str, Any] = dense(
        {
            "threshold": fields.number("threshold", 0, 1),
            "prefix_padding_ms": fields.integer("prefix_padding_ms", 0, MAX_PADDING_MS),
            "silence_duration_ms": fields.integer("silence_duration_ms", 0, MAX_PADDING_MS),
            "idle_timeout_ms": fields.integer("idle_timeout_ms", *IDLE_MS),
            "eagerness": fields.one_of("eagerness", EAGERNESS),
            "create_response": fields.boolean("create_response"),
            "interrupt_response": fields.boolean("interrupt_response"),
        }
    )
    return TurnDetection(kind=kind, **values, extra=to_extra(fields.rest()))


def decode_response_config(fields: Fields) -> Changes:
    """The changes to the configuration that a single answer is asked with."""
    changes = _common(fields, fields.left())
    if (audio := fields.object("audio")) is not None and (
        out := audio.object("output")
    ) is not None:
        changes |= _decode_output(out)
    if rest := fields.rest():
        changes["extra"] = to_extra(rest)
    return changes


# ---- configurations: encoding --------------------------------------------------------------------


def encode_config(config: SessionConfig) -> dict[str, JSON]:
    """A configuration as the object that a client sends and gets."""
    detection = config.turn_detection
    input = {
        "format": _encode_format(config.input_format),
        **dense({"noise_reduction": config.noise_reduction}),
        "turn_detection": None if detection is None else _encode_detection(detection),
    }
    if (how := config.transcription) is not None:
        known = dense({"model": how.model, "language": how.language, "prompt": how.prompt})
        input["transcription"] = json.merge(known, (how.extra or {}).get(WIRE, {}))
    if config.kind == "transcription":
        session: dict[str, JSON] = {"type": "transcription", "audio": {"input": input}}
    else:
        output = {
            "format": _encode_format(config.output_format),
            "voice": config.voice,
            "speed": config.speed,
        }
        session = {
            "type": "realtime",
            **({"model": config.model} if config.model else {}),
            "output_modalities": list(config.modalities),
            "instructions": config.instructions,
            "tools": encode_tools(config),
            "tool_choice": _TOOLS.encode_choice(config.tool_choice),
            "max_output_tokens": config.max_output_tokens or "inf",
            "truncation": config.truncation,
            "audio": {"input": input, "output": output},
            **dense(
                {
                    "parallel_tool_calls": config.parallel_tool_calls,
                    "reasoning": _encode_reasoning(config.reasoning),
                    "temperature": config.temperature,
                    "tracing": config.tracing,
                    "prompt": config.prompt,
                }
            ),
        }
    if config.include:
        session["include"] = list(config.include)
    return json.merge(session, (config.extra or {}).get(WIRE, {}))


def encode_session(id: str, config: SessionConfig, expires_at: int) -> dict[str, JSON]:
    """A session as an object, without the credentials for MCP servers: a page with a client secret
    sees it, too."""
    head = {"id": id, "object": f"realtime.{_OBJECTS[config.kind]}"}
    config = replace(config, tools=without_secrets(config.tools))
    return {**encode_config(config), **head, **dense({"expires_at": expires_at or None})}


_OBJECTS = {"realtime": "session", "transcription": "transcription_session"}


def encode_tools(config: SessionConfig) -> list[JSON]:
    """The tools of a configuration. Those of a session have no `strict`, which OpenAI refuses."""
    encoded = [_TOOLS.encode(tool) for tool in config.tools]
    return [
        {name: value for name, value in tool.items() if name != "strict"}
        for tool in encoded
        if tool is not None
    ]


def encode_response_config(config: SessionConfig, names: Changes) -> dict[str, JSON]:
    """The fields with these names in the core, as an answer is asked with them."""
    audio = {
        "format": _encode_format(config.output_format) if "output_format" in names else None,
        "voice": config.voice if "voice" in names else None,
    }
    every: dict[str, JSON] = {
        "instructions": config.instructions,
        "modalities": list(config.modalities),
        "tools": encode_tools(config),
        "tool_choice": _TOOLS.encode_choice(config.tool_choice),
        "parallel_tool_calls": config.parallel_tool_calls,
        "reasoning": _encode_reasoning(config.reasoning),
        "max_output_tokens": config.max_output_tokens or "inf",
        "temperature": config.temperature,
        "prompt": config.prompt,
    }
    found = {_FIELD_NAMES.get(name, name): every[name] for name in names if name in every}
    if dense(audio):
        found["audio"] = {"output": dense(audio)}
    return found


_FIELD_NAMES = {"modalities": "output_modalities"}


def _encode_format(format: AudioFormat) -> dict[str, JSON]:
    rate = {"rate": PCM_RATE} if format == "pcm16" else {}
    return {"type": _FORMAT_NAMES[format], **rate}


def _encode_detection(detection: TurnDetection) -> dict[str, JSON]:
    known: dict[str, JSON] = {"type": detection.kind}
    if detection.kind == "server_vad":
        known |= {
            "threshold": detection.threshold,
            "prefix_padding_ms": detection.prefix_padding_ms,
            "silence_duration_ms": detection.silence_duration_ms,
            "idle_timeout_ms": detection.idle_timeout_ms,
        }
    else:
        known["eagerness"] = detection.eagerness
    known["create_response"] = detection.create_response
    known["interrupt_response"] = detection.interrupt_response
    return json.merge(known, (detection.extra or {}).get(WIRE, {}))


def _encode_reasoning(reasoning: ReasoningOptions | None) -> JSON:
    if reasoning is None:
        return None
    return json.merge(dense({"effort": reasoning.effort}), (reasoning.extra or {}).get(WIRE, {}))


# ---- answers as objects --------------------------------------------------------------------------


def encode_response(response: SessionResponse) -> dict[str, JSON]:
    """An answer: its beginning, or its end with all its items, without their sound."""
    status: dict[str, JSON] = {"type": response.status, **dense({"reason": response.reason})}
    if response.fault is not None:
        status["error"] = dense(error_object(response.fault))
    output = {"format": _encode_format(response.output_format), "voice": response.voice}
    ended = response.status != "in_progress"
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        **({"status_details": status} if ended else {}),
        "output": list(map(encode_item, response.output)),
        "output_modalities": list(response.modalities),
        "max_output_tokens": response.max_output_tokens or "inf",
        "audio": {"output": output},
        **({"usage": encode_usage(response.usage or Usage())} if ended else {}),
        **dense({"conversation_id": response.conversation_id, "metadata": response.metadata}),
    }


def encode_usage(usage: Usage) -> dict[str, JSON]:
    """Token counts. Clients read all of them without asking whether they are there: 0 stands for
    what was not reported."""
    asked, answered = usage.input_tokens or 0, usage.output_tokens or 0
    audio_in, image_in = usage.input_audio_tokens or 0, usage.input_image_tokens or 0
    audio_out = usage.output_audio_tokens or 0
    text_in, text_out = usage.input_text_tokens, usage.output_text_tokens
    return {
        "total_tokens": usage.total_tokens or asked + answered,
        "input_tokens": asked,
        "output_tokens": answered,
        "input_token_details": {
            "text_tokens": max(asked - audio_in - image_in, 0) if text_in is None else text_in,
            "audio_tokens": audio_in,
            "image_tokens": image_in,
            "cached_tokens": usage.cached_tokens or 0,
        },
        "output_token_details": {
            "text_tokens": max(answered - audio_out, 0) if text_out is None else text_out,
            "audio_tokens": audio_out,
        },
    }


_COUNTED = {
    "input_token_details": ("input", ("text", "audio", "image")),
    "output_token_details": ("output", ("text", "audio")),
}


def decode_usage(value: JSON) -> Usage | None:
    """The counts of an upstream's session; None where it reports none."""
    if not isinstance(value, dict):
        return None
    counts: dict[str, Any] = {name: json.whole(value.get(name)) for name in _TOTALS}
    for group, (side, senses) in _COUNTED.items():
        if isinstance(details := value.get(group), dict):
            for sense in senses:
                counts[f"{side}_{sense}_tokens"] = json.whole(details.get(f"{sense}_tokens"))
            if side == "input":
                counts["cached_tokens"] = json.whole(details.get("cached_tokens"))
    return Usage(**counts)


_TOTALS = ("total_tokens", "input_tokens", "output_tokens")
_STATES = frozenset(("in_progress", "completed", "cancelled", "incomplete", "failed"))


def decode_response(fields: Fields) -> SessionResponse:
    """An answer of an upstream's session."""
    given = fields.string("status")
    status: Any = given if given in _STATES else "in_progress"
    details = fields.object("status_details")
    reason = fault = None
    if details is not None:
        reason, error = details.string("reason"), details.mapping("error")
        fault = describe({"error": error}) if error else None
    changes = decode_response_config(fields)
    return SessionResponse(
        id=fields.string("id") or "",
        status=status,
        reason=reason,
        fault=fault,
        output=tuple([decode_item(item) for item in fields.objects("output")]),
        usage=decode_usage(fields.any("usage")),
        conversation_id=fields.string("conversation_id"),
        metadata=fields.mapping("metadata"),
        **{name: changes[name] for name in _ASKED if name in changes},
    )


_ASKED = ("modalities", "output_format", "voice", "max_output_tokens")


def reported(losses: Any) -> dict[str, JSON]:
    """What could not be carried, as the header that says it over HTTP."""
    return {"headers": {"x-dragoman-loss": header(losses)}} if losses else {}
