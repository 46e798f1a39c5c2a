"""Values of a session: its configuration, the commands it takes, and the events it gives.

A session is the duplex twin of a request: commands go in at any time, events come out at any time.
Sound is PCM16, little-endian, mono, 24 kHz; positions are milliseconds since the first sample of
the session. The rules are in `session`, the names of a protocol in `wire/realtime`.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from .error import Fault
from .event import Event
from .item import JSON, Extra, Item
from .loss import Loss
from .request import ReasoningOptions, Request, Tool, ToolChoice
from .response import Status, Usage
from .sound import Sound

# ---- configuration -----------------------------------------------------------------------------

AudioFormat = Literal["pcm16", "pcmu", "pcma"]
"""How a client sends and gets sound: PCM16 at 24 kHz, or G.711 (u-law, a-law) at 8 kHz."""


class TurnDetection(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the ends of a user's turns are detected: by silence, or by the transcript.

    `idle_timeout_ms` ends a turn without speech; `create_response` answers each turn;
    `interrupt_response` stops an answer when the user speaks.
    """

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    extra: Extra | None = None


class Transcription(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How what the user says is transcribed for the client."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    extra: Extra | None = None


class SessionConfig(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What holds for every answer of a session, unless a command says otherwise.

    `kind` "transcription" only listens. `turn_detection` None leaves turns to the client.
    `max_output_tokens` None is no limit.
    """

    model: str = ""
    kind: Literal["realtime", "transcription"] = "realtime"
    instructions: str = ""
    modalities: tuple[str, ...] = ("audio",)
    input_format: AudioFormat = "pcm16"
    transcription: Transcription | None = None
    noise_reduction: JSON = None
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    output_format: AudioFormat = "pcm16"
    voice: JSON = "alloy"
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    truncation: JSON = "auto"
    tracing: JSON = None
    include: tuple[str, ...] = ()
    prompt: JSON = None
    extra: Extra | None = None


Changes = dict[str, JSON]
"""Fields of a `SessionConfig` by name, those that a command gives: all others stay."""

_UNUSED: dict[str, tuple[JSON, ...]] = {
    "noise_reduction": (),
    "truncation": ("auto", "disabled"),
    "tracing": (),
    "include": ((),),
}
"""Fields of a configuration that nothing here acts on, and their values that ask for nothing."""


def unread(changes: Changes) -> tuple[Loss, ...]:
    """The fields that are none of a configuration's, of the other dialect or misspelt, and those
    that ask for what no session here does."""
    given = (changes.get("extra") or {}).values()
    unknown = [Loss(name, "dropped", "no such field") for fields in given for name in fields]
    unused = [name for name, usual in _UNUSED.items() if changes.get(name) not in (None, *usual)]
    return (*unknown, *[Loss(name, "dropped", "nothing here does that") for name in unused])


_NEEDED = {
    "model": ("model", "a session keeps the model that it was opened for"),
    "modalities": ("output_modalities", "nothing here speaks"),
    "turn_detection": ("turn_detection", "nothing here listens for turns"),
    "transcription": ("transcription", "nothing here transcribes"),
}


def unfit(asked: SessionConfig, config: SessionConfig, *, answer: bool = False) -> tuple[Loss, ...]:
    """What of a configuration cannot hold here; of that of an `answer`, a choice without tools,
    too: those of a session may come later."""
    found = [_NEEDED[name] for name in _NEEDED if getattr(asked, name) != getattr(config, name)]
    if answer and not config.tools and config.tool_choice not in ("auto", "none"):
        found.append(("tool_choice", "there are no tools to choose from"))
    return tuple([Loss(name, "dropped", why) for name, why in found])


# ---- limits ------------------------------------------------------------------------------------


class SessionLimits(Struct, frozen=True, kw_only=True):
    """How much a session holds (bytes of sound, items, characters of text and of its configuration,
    answers at once), how many bytes of sound it gives back in one event, and how long it lasts."""

    audio: int = 64 * 1024 * 1024
    retrieved: int = 4 * 1024 * 1024
    items: int = 4_096
    text: int = 32 * 1024 * 1024
    config: int = 4 * 1024 * 1024
    responses: int = 8
    lifetime_ms: int = 3_600_000


# ---- commands ----------------------------------------------------------------------------------


class Command(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a client asks of a session. `event_id` is its own name for that, which errors repeat."""

    event_id: str | None = None


class Configure(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Change the configuration."""

    changes: Changes


class Append(Command, frozen=True, omit_defaults=True, kw_only=True):
    """More sound from the user's microphone."""

    audio: bytes


class Commit(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Make an item of the sound in the buffer."""


class Clear(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Drop the sound in the buffer."""


class ClearOutput(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Stop playing, where it is the server that plays (WebRTC)."""


class CreateItem(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Put an item into the conversation: behind another one, at its beginning (`ROOT`), or at its
    end. `sounds` are those of its parts, by their index, that are not base64 in the item."""

    item: Item
    previous_item_id: str | None = None
    sounds: dict[int, bytes] = {}


class Retrieve(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Give an item back, with its sound."""

    item_id: str


class Truncate(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Drop what of a spoken part was not played to the user."""

    item_id: str
    content_index: int
    audio_end_ms: int


class Delete(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Take an item out of the conversation."""

    item_id: str


class Respond(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Have the model answer, with these changes to the configuration. Out of band
    (`conversation` false) nothing is added to the conversation; `input` is answered in its place.
    """

    changes: Changes = {}
    conversation: bool = True
    input: tuple[Item, ...] | None = None
    metadata: dict[str, JSON] | None = None


class Cancel(Command, frozen=True, omit_defaults=True, kw_only=True):
    """Stop an answer: the one of the conversation, where none is named."""

    response_id: str | None = None


class Unreadable(Command, frozen=True, omit_defaults=True, kw_only=True):
    """What a client sent that is no command."""

    fault: Fault


ROOT = "root"
"""The place before the first item of a conversation."""


# ---- reports: of the session's own ears, clock and engine ----------------------------------------


class Tick(Struct, frozen=True):
    """Time has passed: milliseconds since the session began."""

    now_ms: int


class SpeechStarted(Struct, frozen=True):
    """The user began to speak, at this position (without the padding before it)."""

    at_ms: int


class SpeechStopped(Struct, frozen=True):
    """The user has stopped to speak: the turn ends at this position."""

    at_ms: int


class Transcribed(Struct, frozen=True, omit_defaults=True):
    """A piece of the transcript of an item; with `done` its end, with a fault its failure."""

    item_id: str
    text: str = ""
    done: bool = False
    fault: Fault | None = None


class Answered(Struct, frozen=True):
    """The next events of an engine's answer."""

    response_id: str
    events: list[Event]


Report = Tick | SpeechStarted | SpeechStopped | Transcribed | Answered


# ---- work: what a session has its driver do ------------------------------------------------------


class Generate(Struct, frozen=True):
    """Work: ask the engine, and report its events as `Answered`. The sounds are added to the
    request before that (`conversation.with_sounds`); `size` is that of both together."""

    response_id: str
    request: Request
    sounds: tuple[Sound, ...] = ()
    size: int = 0


class Stop(Struct, frozen=True):
    """Work: cancel what was begun for an answer."""

    response_id: str


class Transcribe(Struct, frozen=True):
    """Work: transcribe the sound of an item, and report it as `Transcribed`."""

    item_id: str
    audio: Sound
    options: Transcription


class Forget(Struct, frozen=True):
    """Work: the detector begins anew; an utterance that it is in is over."""


Work = Generate | Stop | Transcribe | Forget


# ---- events --------------------------------------------------------------------------------------


class SessionCreated(Struct, frozen=True, omit_defaults=True):
    """The session is open. `expires_at` is in Unix seconds."""

    id: str
    config: SessionConfig
    expires_at: int = 0


class SessionUpdated(Struct, frozen=True, omit_defaults=True):
    """The configuration as it holds now, and what of the changes could not be carried."""

    id: str
    config: SessionConfig
    expires_at: int = 0
    losses: tuple[Loss, ...] = ()


class ConversationCreated(Struct, frozen=True, omit_defaults=True):
    """The conversation of the session is there."""

    id: str


class ConversationItemAdded(Struct, frozen=True, omit_defaults=True):
    """An item is in the conversation, behind this one; None for the first."""

    item: Item
    previous_item_id: str | None = None


class ConversationItemDone(Struct, frozen=True, omit_defaults=True):
    """An item of the conversation is complete."""

    item: Item
    previous_item_id: str | None = None


class ItemRetrieved(Struct, frozen=True, omit_defaults=True):
    """An item, with its sound."""

    item: Item
    losses: tuple[Loss, ...] = ()


class ItemTruncated(Struct, frozen=True, omit_defaults=True):
    """A spoken part has been cut."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ItemDeleted(Struct, frozen=True, omit_defaults=True):
    """An item is no longer in the conversation."""

    item_id: str


class TranscriptionDelta(Struct, frozen=True, omit_defaults=True):
    """A piece of a transcript."""

    item_id: str
    content_index: int
    delta: str
    logprobs: JSON = None


class TranscriptionSegment(Struct, frozen=True, omit_defaults=True):
    """A segment of a transcript: its speaker, and its times in seconds."""

    item_id: str
    content_index: int
    id: str
    text: str
    speaker: str
    start: float
    end: float


class TranscriptionCompleted(Struct, frozen=True, omit_defaults=True):
    """A transcript, of so many seconds of sound; `usage` is that of an upstream, unchanged."""

    item_id: str
    content_index: int
    transcript: str
    seconds: float = 0.0
    usage: JSON = None
    logprobs: JSON = None


class TranscriptionFailed(Struct, frozen=True, omit_defaults=True):
    """The transcription failed."""

    item_id: str
    content_index: int
    fault: Fault


class BufferCommitted(Struct, frozen=True, omit_defaults=True):
    """The buffer's sound becomes this item."""

    item_id: str
    previous_item_id: str | None = None
    losses: tuple[Loss, ...] = ()


class BufferCleared(Struct, frozen=True, omit_defaults=True):
    """The buffer is empty."""


class BufferSpeechStarted(Struct, frozen=True, omit_defaults=True):
    """The user has begun to speak; the turn will be this item."""

    item_id: str
    audio_start_ms: int


class BufferSpeechStopped(Struct, frozen=True, omit_defaults=True):
    """The user has stopped."""

    item_id: str
    audio_end_ms: int


class BufferTimedOut(Struct, frozen=True, omit_defaults=True):
    """The user was silent for `idle_timeout_ms`."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class ToneReceived(Struct, frozen=True, omit_defaults=True):
    """A key of a telephone was pressed, at this Unix time."""

    tone: str
    received_at: int


class Playing(Struct, frozen=True, omit_defaults=True):
    """The server, where it is the one that plays, plays an answer, or no longer does."""

    response_id: str
    state: Literal["started", "stopped", "cleared"]


class SessionResponse(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An answer inside a session. `reason` says why it is cancelled or incomplete; `config` is
    what it was asked with."""

    id: str
    status: Status = "in_progress"
    reason: str | None = None
    fault: Fault | None = None
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    conversation_id: str | None = None
    metadata: dict[str, JSON] | None = None
    modalities: tuple[str, ...] = ("audio",)
    output_format: AudioFormat = "pcm16"
    voice: JSON = "alloy"
    max_output_tokens: int | None = None
    losses: tuple[Loss, ...] = ()


class ResponseCreated(Struct, frozen=True, omit_defaults=True):
    """An answer has begun."""

    response: SessionResponse


class ResponseDone(Struct, frozen=True, omit_defaults=True):
    """An answer has ended, in whatever way."""

    response: SessionResponse


class Answer(Struct, frozen=True, omit_defaults=True):
    """Something inside an answer: one of the events of items, parts, deltas and progress.

    `kind` is the type of the item it is about, and `call_id` that of a call.
    """

    response_id: str
    item_id: str
    event: Event
    kind: str = "message"
    call_id: str | None = None


class RateLimits(Struct, frozen=True, omit_defaults=True):
    """The limits that hold now, as the protocol has them."""

    limits: tuple[dict[str, JSON], ...] = ()


class Refused(Struct, frozen=True, omit_defaults=True):
    """A command was refused, by its `event_id`, or something else went wrong. The session goes
    on."""

    fault: Fault
    event_id: str | None = None


class UnknownEvent(Struct, frozen=True):
    """An event of an upstream's session that we do not know, unchanged."""

    kind: str
    value: dict[str, JSON]


SessionEvent = (
    SessionCreated
    | SessionUpdated
    | ConversationCreated
    | ConversationItemAdded
    | ConversationItemDone
    | ItemRetrieved
    | ItemTruncated
    | ItemDeleted
    | TranscriptionDelta
    | TranscriptionSegment
    | TranscriptionCompleted
    | TranscriptionFailed
    | BufferCommitted
    | BufferCleared
    | BufferSpeechStarted
    | BufferSpeechStopped
    | BufferTimedOut
    | ToneReceived
    | Playing
    | ResponseCreated
    | ResponseDone
    | Answer
    | RateLimits
    | Refused
    | UnknownEvent
)
