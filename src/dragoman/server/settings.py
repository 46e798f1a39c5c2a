"""The settings of the server: meaning, unit and default of each.

These are plain values; this module does not know where they come from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dragoman.core.interfaces import Secret
from dragoman.wire.json import Limits
from dragoman.wire.protocol import Dialect

DIALECTS = {
    "openai": Dialect(),
    "open-responses": Dialect(reasoning_events="reasoning", error_event="nested"),
}
"""The two dialects of Responses, where its standards differ."""


def about(text: str, *, ge: float | None = None, le: float | None = None) -> Meta:
    """What a setting means, and its bounds."""
    return Meta(description=text, ge=ge, le=le)


class Settings(Limits, frozen=True, kw_only=True):
    """Settings of the server. Each field's description is its documentation.

    >>> Settings(heartbeat=5).heartbeat
    5
    """

    host: Annotated[
        str, about("The address to listen on; any other than loopback needs a key.")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        about(
            "The port to listen on; 0 picks a free one. Unset, the next free one will do too.",
            ge=0,
            le=65535,
        ),
    ] = 8000
    workers: Annotated[int, about("Processes that share the port.", ge=1, le=1024)] = 1
    backlog: Annotated[
        int,
        about("Connections that the system queues before they are accepted.", ge=1, le=65535),
    ] = 2048
    keep_alive: Annotated[int, about("Seconds before an idle connection is closed.", ge=1)] = 75

    api_key_env: Annotated[
        tuple[str, ...], about("Environment variables that hold the API keys for clients.")
    ] = ()
    keys: tuple[Secret, ...] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        about('Host names allowed besides loopback while no key is configured; "*" allows any.'),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        about('Web origins whose pages may use this server; "*" allows any, empty allows none.'),
    ] = ()

    body_limit: Annotated[int, about("Maximum size of a request body, in bytes.", ge=1)] = (
        64 * 1024 * 1024
    )
    memory: Annotated[
        int,
        about(
            "Bytes of requests and answers in flight, per worker, beyond which new ones are "
            "refused; each value in a body counts for 80 more. Where there are several keys, one "
            "of them may hold `share` of it.",
            ge=1,
        ),
    ] = 256 * 1024 * 1024
    answer_limit: Annotated[
        int,
        about(
            "Maximum size of what an upstream sends for one request, in bytes, without its "
            "compression.",
            ge=1024,
        ),
    ] = 64 * 1024 * 1024
    header_limit: Annotated[
        int, about("Maximum size of request line and headers, in bytes.", ge=1024)
    ] = 64 * 1024
    read_time: Annotated[
        float,
        about(
            "Seconds for receiving the headers of a request, and between two parts of its body or "
            "of a WebSocket message.",
            ge=0.1,
        ),
    ] = 60.0
    min_rate: Annotated[
        int,
        about(
            "Bytes per second that a body or a WebSocket message must come with on average, after "
            "`read_time`, and that a whole answer must be read with, after `stall`.",
            ge=1,
        ),
    ] = 1000
    concurrency: Annotated[int, about("Requests processed at the same time, per worker.", ge=1)] = (
        1024
    )
    queue: Annotated[int, about("Requests that may wait for a free slot, per worker.", ge=0)] = 1024
    background: Annotated[
        int, about("Background responses processed at the same time, per worker.", ge=1)
    ] = 256
    background_queue: Annotated[
        int,
        about("Background responses that may wait, for as long as it takes, per worker.", ge=0),
    ] = 256
    share: Annotated[
        float,
        about(
            "Where there are several keys, how much of `concurrency`, `queue` and `background` one "
            "may take of what it has and what is free together, and of `memory` in all: with 0.5 "
            "as much as it leaves to others. 1 is all.",
            ge=0.01,
            le=1,
        ),
    ] = 0.5
    max_sockets_per_key: Annotated[
        int,
        about("Maximum number of WebSockets that one key may have open, per worker.", ge=1),
    ] = 512
    max_calls: Annotated[
        int,
        about(
            "WebRTC calls that may go on at the same time. Where there are several keys, one of "
            "them may have `share` of them.",
            ge=1,
        ),
    ] = 64
    call_host: Annotated[
        str,
        about(
            "The address of this machine where WebRTC calls are awaited, by UDP; empty is `host`."
        ),
    ] = ""
    session_audio: Annotated[
        int,
        about(
            "Bytes of sound that a Realtime session may hold; beyond that the oldest is dropped, "
            "and its transcript kept. A minute has 2.9 MB.",
            ge=1024 * 1024,
        ),
    ] = 64 * 1024 * 1024
    queue_time: Annotated[
        float, about("Seconds that a request may wait for a free slot.", ge=0.1)
    ] = 30.0
    deadline: Annotated[
        float | None,
        about(
            "Seconds that an answer may take in total, unless it is in the background; none is no "
            "limit.",
            ge=0.1,
        ),
    ] = None

    header_hold: Annotated[
        float,
        about(
            "Seconds that a stream waits for its first event before headers are sent, so that an "
            "early failure has its own HTTP status.",
            ge=0,
        ),
    ] = 5.0
    heartbeat: Annotated[
        float, about("Seconds of silence after which a stream sends a heartbeat.", ge=0.1)
    ] = 10.0
    heartbeat_data: Annotated[
        tuple[str, ...],
        about(
            "Words in a User-Agent of clients whose idle timer ignores comments; they get "
            "heartbeats as events."
        ),
    ] = ("codex",)
    stall: Annotated[
        float,
        about(
            "Seconds that a client may leave an answer unread before it is disconnected: what was "
            "written last, of which it must take something, and large amounts with `min_rate`.",
            ge=0.1,
        ),
    ] = 120.0
    drain: Annotated[
        float, about("Seconds that running answers have to finish at shutdown.", ge=0)
    ] = 20.0
    request_log: Annotated[
        bool,
        about(
            "Whether each request is logged to stderr: time, method, path, status, fault, duration,"
            " model, tokens, the name of its key, upstream and id, and never its content."
        ),
    ] = False
    log_format: Annotated[
        Literal["text", "json"],
        about("How requests and errors are logged: as text, or each as a line of JSON."),
    ] = "text"

    dialect: Annotated[
        Literal["openai", "open-responses"],
        about("The Responses dialect, where its two standards differ."),
    ] = "openai"

    store: Annotated[
        str,
        about(
            "Where responses are stored: none, memory (until the server stops), sqlite (a file in "
            "the user's data directory), sqlite:PATH, or postgresql://… (shared by several "
            "servers; its password in PGPASSWORD)."
        ),
    ] = "sqlite"
    store_time: Annotated[
        float,
        about(
            "Seconds that the store has to answer. What needs it is refused with 503 after that, "
            "and an answer that could not be stored says so.",
            ge=0.1,
            le=3600,
        ),
    ] = 5.0
    pubsub: Annotated[
        str,
        about(
            "The Redis (redis://HOST:6379) for notifications between servers that share a "
            "database; empty uses the database. Its password in REDIS_PASSWORD."
        ),
    ] = ""
    retention: Annotated[
        float,
        about("Seconds that responses are retained, and conversations after their last use.", ge=1),
    ] = 30 * 86_400.0
    log_retention: Annotated[
        float, about("Seconds that the events of a response are retained for replay.", ge=1)
    ] = 86_400.0
    max_responses: Annotated[
        int,
        about(
            "Maximum number of stored responses. Beyond it the oldest of the key that has most are "
            "deleted.",
            ge=1,
        ),
    ] = 100_000
    max_responses_per_key: Annotated[
        int,
        about("Maximum number of stored responses of one key; its oldest are deleted first.", ge=1),
    ] = 100_000
    max_conversations: Annotated[
        int,
        about(
            "Maximum number of conversations. Beyond it, of the key that has most, those that were "
            "not used for longest are deleted.",
            ge=1,
        ),
    ] = 100_000
    conversation_items: Annotated[
        int, about("Items that a conversation may have; then it takes no more.", ge=1)
    ] = 10_000
    conversation_bytes: Annotated[
        int, about("Bytes that the items of a conversation may have together.", ge=1)
    ] = 64 * 1024 * 1024
    history_items: Annotated[
        int,
        about(
            "Items that a request may have with all that it goes on from: a chain of responses, or "
            "a conversation.",
            ge=1,
        ),
    ] = 20_000
    max_file_bytes: Annotated[
        int, about("Maximum size of an uploaded file, in bytes.", ge=1, le=512 * 1024 * 1024)
    ] = 16 * 1024 * 1024
    max_files_per_key: Annotated[
        int, about("Files that one key may have uploaded; then it can upload no more.", ge=1)
    ] = 1_000
    max_file_bytes_per_key: Annotated[
        int, about("Bytes that the files of one key may have together.", ge=1)
    ] = 1024 * 1024 * 1024
    max_vector_stores_per_key: Annotated[
        int, about("Vector stores that one key may have.", ge=1)
    ] = 100
    max_vector_store_chunks: Annotated[
        int,
        about(
            "Chunks of text that a vector store may have; a file that has more than there is room "
            "for fails.",
            ge=1,
        ),
    ] = 50_000
    embedding_model: Annotated[
        str,
        about(
            "The model, by its name at this server, that makes the vectors by which files are "
            "searched; empty searches by words alone."
        ),
    ] = ""
    audio_limit: Annotated[
        int, about("Maximum size of a recording to transcribe, in bytes.", ge=1)
    ] = 25 * 1024 * 1024
    speech: Annotated[
        str,
        about(
            "What speaks: espeak-ng, espeak-ng=VOICE, piper=FILE, kokoro=FILE, the URL of a server "
            "with /audio/speech (and, after a space, its model), none, or auto: espeak-ng where it "
            "is installed."
        ),
    ] = "auto"
    speech_key_env: Annotated[
        str | None, about("The environment variable that holds our key to that server.")
    ] = None
    transcription: Annotated[
        str,
        about(
            "What understands speech: pocketsphinx, pocketsphinx=GRAMMAR, faster-whisper=MODEL, "
            "the URL of a server with /audio/transcriptions (and, after a space, its model), none, "
            "or auto: pocketsphinx where it is installed."
        ),
    ] = "auto"
    transcription_key_env: Annotated[
        str | None, about("The environment variable that holds our key to that server.")
    ] = None
    speech_detection: Annotated[
        str,
        about(
            "What tells speech from silence: energy, webrtc, silero, or auto: webrtc where it is "
            "installed, and else energy."
        ),
    ] = "auto"
    inherit_instructions: Annotated[
        bool,
        about(
            "Whether a request with previous_response_id and without instructions uses those of "
            "that response."
        ),
    ] = False
    encryption_key_env: Annotated[
        str | None,
        about(
            "The environment variable with the key that encrypts reasoning for clients that "
            "request it; without one, a file in the user's data directory holds a key."
        ),
    ] = None
    reasoning_cache: Annotated[
        int,
        about(
            "Bytes of reasoning that each worker caches for clients that send calls back without "
            "it; 0 disables the cache.",
            ge=0,
        ),
    ] = 64 * 1024 * 1024
    reasoning_retry: Annotated[
        bool,
        about(
            "Whether a request is sent once more without encrypted reasoning, and this is "
            "reported, if the upstream refuses it because it cannot decrypt that."
        ),
    ] = True
    requeue: Annotated[
        bool,
        about(
            "Whether a background response whose server died before its first output is started "
            "again by another server; otherwise, and where clients' own keys are sent upstream "
            "(pass_client_key), which are not stored, it ends as failed."
        ),
    ] = False
    lease: Annotated[
        float,
        about(
            "Seconds without renewal after which another server may end the runs of a server.", ge=1
        ),
    ] = 30.0
