"""The settings of the server: meaning, unit and default of each.

These are plain values; this module does not know where they come from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman.core.interfaces import Secret
from dragoman.wire.protocol import Dialect

DIALECTS = {
    "openai": Dialect(),
    "open-responses": Dialect(reasoning_events="reasoning", error_event="nested"),
}
"""The two dialects of Responses, where its standards differ."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of the server. Each field's description is its documentation.

    >>> Settings(heartbeat=5).heartbeat
    5
    """

    host: Annotated[
        str, Meta(description="The address to listen on; any other than loopback needs a key.")
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="The port to listen on; 0 picks a free one.")
    ] = 8000
    workers: Annotated[int, Meta(ge=1, description="Processes that share the port.")] = 1
    backlog: Annotated[
        int, Meta(ge=1, description="Connections that the system queues before they are accepted.")
    ] = 2048
    keep_alive: Annotated[
        int, Meta(ge=1, description="Seconds before an idle connection is closed.")
    ] = 75

    api_key_env: Annotated[
        tuple[str, ...],
        Meta(description="Environment variables that hold the API keys for clients."),
    ] = ()
    keys: tuple[Secret, ...] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description='Host names allowed besides loopback while no key is configured; "*" '
            "allows any."
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description='Web origins whose pages may use this server; "*" allows any, empty '
            "allows none."
        ),
    ] = ()

    body_limit: Annotated[
        int, Meta(ge=1, description="Maximum size of a request body, in bytes.")
    ] = 64 * 1024 * 1024
    header_limit: Annotated[
        int, Meta(ge=1024, description="Maximum size of request line and headers, in bytes.")
    ] = 64 * 1024
    read_time: Annotated[
        float,
        Meta(
            ge=0.1,
            description="Seconds for receiving the headers of a request, and between two parts of "
            "its body.",
        ),
    ] = 60.0
    concurrency: Annotated[
        int, Meta(ge=1, description="Requests processed at the same time, per worker.")
    ] = 1024
    queue: Annotated[
        int, Meta(ge=0, description="Requests that may wait for a free slot, per worker.")
    ] = 1024
    queue_time: Annotated[
        float, Meta(ge=0.1, description="Seconds that a request may wait for a free slot.")
    ] = 30.0
    deadline: Annotated[
        float | None,
        Meta(ge=0.1, description="Seconds that an answer may take in total; none is no limit."),
    ] = None

    header_hold: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds that a stream waits for its first event before headers are sent, "
            "so that an early failure has its own HTTP status.",
        ),
    ] = 5.0
    heartbeat: Annotated[
        float,
        Meta(ge=0.1, description="Seconds of silence after which a stream sends a heartbeat."),
    ] = 10.0
    heartbeat_data: Annotated[
        tuple[str, ...],
        Meta(
            description="Words in a User-Agent of clients whose idle timer ignores comments; they "
            "get heartbeats as events."
        ),
    ] = ("codex",)
    stall: Annotated[
        float,
        Meta(
            ge=0.1,
            description="Seconds that a client may leave a stream unread before it is "
            "disconnected.",
        ),
    ] = 120.0
    drain: Annotated[
        float, Meta(ge=0, description="Seconds that running answers have to finish at shutdown.")
    ] = 20.0
    request_log: Annotated[
        bool,
        Meta(
            description="Whether each request is logged to stderr: method, path, status, time, "
            "model and tokens, and never its content."
        ),
    ] = False

    dialect: Annotated[
        Literal["openai", "open-responses"],
        Meta(description="The Responses dialect, where its two standards differ."),
    ] = "openai"

    store: Annotated[
        str,
        Meta(
            description="Where responses are stored: none, memory (until the server stops), "
            "sqlite (a file in the user's data directory), sqlite:PATH, or postgresql://… (shared "
            "by several servers; its password in PGPASSWORD)."
        ),
    ] = "sqlite"
    pubsub: Annotated[
        str,
        Meta(
            description="The Redis (redis://HOST:6379) for notifications between servers that "
            "share a database; empty uses the database. Its password in REDIS_PASSWORD."
        ),
    ] = ""
    retention: Annotated[
        float, Meta(ge=1, description="Seconds that responses and conversations are retained.")
    ] = 30 * 86_400.0
    log_retention: Annotated[
        float,
        Meta(ge=1, description="Seconds that the events of a response are retained for replay."),
    ] = 86_400.0
    max_responses: Annotated[
        int,
        Meta(ge=1, description="Maximum number of stored responses; the oldest are deleted first."),
    ] = 100_000
    inherit_instructions: Annotated[
        bool,
        Meta(
            description="Whether a request with previous_response_id and without instructions "
            "uses those of that response."
        ),
    ] = False
    encryption_key_env: Annotated[
        str | None,
        Meta(
            description="The environment variable with the key that encrypts reasoning for "
            "clients that request it; without one, a file in the user's data directory holds a "
            "key."
        ),
    ] = None
    reasoning_cache: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of reasoning that each worker caches for clients that send calls "
            "back without it; 0 disables the cache.",
        ),
    ] = 64 * 1024 * 1024
    reasoning_retry: Annotated[
        bool,
        Meta(
            description="Whether a request is sent once more without encrypted reasoning, and "
            "this is reported, if the upstream refuses it because it cannot decrypt that."
        ),
    ] = True
    requeue: Annotated[
        bool,
        Meta(
            description="Whether a background response whose server died before its first output "
            "is started again by another server; otherwise it ends as failed."
        ),
    ] = False
    lease: Annotated[
        float,
        Meta(
            ge=1,
            description="Seconds without renewal after which another server may end the runs of a "
            "server.",
        ),
    ] = 30.0
