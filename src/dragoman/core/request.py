"""Requests: one for the next turn of a conversation, or bare prompts to complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from .error import quoted
from .item import JSON, Extra, Item, Part, Unknown, UnknownPart


class Sampling(Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen, what stops the answer, and what is reported about it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None


class FunctionTool(Struct, frozen=True, omit_defaults=True, tag="function"):
    """A function the model may ask for. `parameters` is a JSON Schema in its key order."""

    name: str
    description: str | None = None
    parameters: dict[str, JSON] | None = None
    strict: bool | None = None
    extra: Extra | None = None


class CustomTool(Struct, frozen=True, omit_defaults=True, tag="custom"):
    """A tool that takes free text, or text of a grammar (`syntax` is `lark` or `regex`)."""

    name: str
    description: str | None = None
    syntax: str | None = None
    grammar: str | None = None
    extra: Extra | None = None


class Namespace(Struct, frozen=True, omit_defaults=True, tag="namespace"):
    """A named group of tools."""

    name: str
    tools: tuple[FunctionTool | CustomTool | UnknownTool, ...]
    description: str | None = None
    extra: Extra | None = None


class UnknownTool(Struct, frozen=True, tag="unknown"):
    """A tool of a kind we have no struct for (most are hosted ones), unchanged."""

    wire: str
    kind: str
    value: dict[str, JSON]


Tool = FunctionTool | CustomTool | Namespace | UnknownTool


class NamedTool(Struct, frozen=True, omit_defaults=True, tag="named"):
    """The model must call this tool. `kind` is `function` or `custom`."""

    name: str
    kind: Literal["function", "custom"] = "function"
    namespace: str | None = None
    extra: Extra | None = None


class AllowedTools(Struct, frozen=True, omit_defaults=True, tag="allowed"):
    """The model may (`auto`) or must (`required`) call one of these, and no other."""

    mode: Literal["auto", "required"]
    tools: tuple[NamedTool | UnknownTool, ...]
    extra: Extra | None = None


ToolMode = Literal["none", "auto", "required"]
ToolChoice = ToolMode | NamedTool | AllowedTools | UnknownTool


class TextFormat(Struct, frozen=True, tag="text"):
    """The answer is plain text."""


class JSONObject(Struct, frozen=True, tag="json_object"):
    """The answer is some JSON object."""


class JSONSchema(Struct, frozen=True, omit_defaults=True, tag="json_schema"):
    """The answer is JSON that fits `schema`."""

    name: str
    schema: dict[str, JSON] | None = None
    description: str | None = None
    strict: bool | None = None
    extra: Extra | None = None


OutputFormat = TextFormat | JSONObject | JSONSchema


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Known efforts, the least first; a model may have others."""


class ReasoningOptions(Struct, frozen=True, omit_defaults=True):
    """How hard to think, and how much of it to show."""

    effort: str | None = None
    summary: str | None = None
    extra: Extra | None = None


class AudioOutput(Struct, frozen=True, omit_defaults=True):
    """The voice and the format of audio answers; a voice is a name or a wire's own object."""

    voice: JSON = None
    format: str | None = None
    extra: Extra | None = None


class StreamOptions(Struct, frozen=True, omit_defaults=True):
    """What a streamed answer carries besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    extra: Extra | None = None


class Request(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One turn asked of an engine.

    >>> from dragoman.core.item import Message
    >>> Request(model="m", items=(Message("user", "hello"),)).items[0].text
    'hello'
    """

    model: str
    items: tuple[Item, ...] = ()
    instructions: str | tuple[Item, ...] | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_output_tokens: int | None = None
    format: OutputFormat | None = None
    verbosity: str | None = None
    reasoning: ReasoningOptions | None = None
    modalities: tuple[str, ...] | None = None
    audio: AudioOutput | None = None
    prediction: JSON = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    # State that is stored or referenced.
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: JSON = None
    background: bool | None = None
    truncation: str | None = None
    context_management: JSON = None
    include: tuple[str, ...] = ()
    prompt: JSON = None
    # Labels, and options of the provider.
    metadata: dict[str, JSON] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: JSON = None
    service_tier: str | None = None
    moderation: JSON = None
    web_search: JSON = None
    extra: Extra | None = None


Prompt = str | tuple[int, ...]
"""Text, in which control tokens count as such, or token ids."""


class Completion(Request, frozen=True, omit_defaults=True, kw_only=True):
    """Bare prompts that share a request. Each has `n` choices, in the order of the prompts.

    With `echo` the answer repeats the prompt first, and a limit of 0 tokens makes sense.

    >>> Completion(model="m", prompts=("Once upon",), max_output_tokens=8).prompts
    ('Once upon',)
    """

    prompts: tuple[Prompt, ...] = ()
    echo: bool = False


def completion_request(
    request: Request, prompts: Sequence[str | Sequence[int]], *, echo: bool = False
) -> Completion:
    """The request, for these prompts.

    >>> completion_request(Request(model="m"), ["Once", [1, 2]]).prompts
    ('Once', (1, 2))
    """
    given = tuple(each if isinstance(each, str) else tuple(each) for each in prompts)
    return Completion(**asdict(request) | {"prompts": given, "echo": echo})


def type_name(value: Item | Part | Tool) -> str:
    """The type of an item, a part or a tool, in quotes.

    >>> from dragoman.core.item import ItemReference
    >>> type_name(ItemReference("msg_1")), type_name(Unknown("responses", "web_search_call", {}))
    ("'item_reference'", "'web_search_call'")
    """
    match value:
        case Unknown(kind=kind) | UnknownTool(kind=kind):
            pass
        case UnknownPart(value=fields):
            kind = str(fields.get("type"))
        case _:
            kind = str(value.__struct_config__.tag)
    return quoted(kind)
