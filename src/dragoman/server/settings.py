"""Everything about the server that can be set: its meaning, its unit and its default.

These are plain values; where they come from (a file, the command line, a caller) is not known
here, and what they bring about is done elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman.core.interfaces import Secret
from dragoman.wire.dialect import Dialect

DIALECTS = {
    "openai": Dialect(),
    "open-responses": Dialect(reasoning_events="reasoning", error_event="nested"),
}
"""The two ways Responses is spoken, where they contradict one another."""


class Settings(Struct, frozen=True, kw_only=True):
    """How the server serves. Each field's own description is its documentation.

    >>> Settings(heartbeat=5).heartbeat
    5
    """

    host: Annotated[
        str, Meta(description="The address to listen on; other than loopback only with a key.")
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="The port to listen on; 0 is any free one.")
    ] = 8000
    workers: Annotated[int, Meta(ge=1, description="Processes that share the port.")] = 1
    backlog: Annotated[
        int, Meta(ge=1, description="Connections the system keeps waiting to be accepted.")
    ] = 2048
    keep_alive: Annotated[
        int, Meta(ge=1, description="Seconds an idle connection is kept open.")
    ] = 75

    api_key_env: Annotated[
        tuple[str, ...],
        Meta(description="Environment variables that hold the keys clients may present."),
    ] = ()
    keys: tuple[Secret, ...] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Names clients may call this server by, beside loopback ones, while no "
            'key is asked for; "*" is any.'
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(description='Web origins whose pages may use this server; "*" is any, none is off.'),
    ] = ()

    body_limit: Annotated[int, Meta(ge=1, description="The largest request body, in bytes.")] = (
        64 * 1024 * 1024
    )
    header_limit: Annotated[
        int, Meta(ge=1024, description="The largest head of a request, in bytes.")
    ] = 64 * 1024
    read_time: Annotated[
        float,
        Meta(
            ge=0.1,
            description="Seconds a request's head may take, and its body pause, while it arrives.",
        ),
    ] = 60.0
    concurrency: Annotated[
        int, Meta(ge=1, description="Answers given at the same time, by each worker.")
    ] = 1024
    queue: Annotated[
        int, Meta(ge=0, description="Requests that may wait for their turn, in each worker.")
    ] = 1024
    queue_time: Annotated[
        float, Meta(ge=0.1, description="Seconds a request waits for its turn at the most.")
    ] = 30.0
    deadline: Annotated[
        float | None,
        Meta(ge=0.1, description="Seconds an answer may take in all; none is no limit."),
    ] = None

    header_hold: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds a stream waits for its first event before it is begun anyway, "
            "so that an early failure has an HTTP status of its own.",
        ),
    ] = 5.0
    heartbeat: Annotated[
        float, Meta(ge=0.1, description="Seconds of silence after which a stream shows life.")
    ] = 10.0
    heartbeat_data: Annotated[
        tuple[str, ...],
        Meta(
            description="Words in a User-Agent that mark clients whose idle timer only events "
            "reset, not comments; they get heartbeats as events."
        ),
    ] = ("codex",)
    stall: Annotated[
        float, Meta(ge=0.1, description="Seconds a client may leave a stream unread.")
    ] = 120.0
    drain: Annotated[
        float, Meta(ge=0, description="Seconds running answers get to end when we shut down.")
    ] = 20.0
    request_log: Annotated[
        bool,
        Meta(
            description="Whether each request leaves a line on stderr: method, path, status, time, "
            "model and tokens, and never what was said."
        ),
    ] = False

    relay: Annotated[
        bool,
        Meta(
            description="Whether answers pass through unread where client and upstream speak the "
            "same protocol, the upstream is known to speak it cleanly, and nothing is to be done."
        ),
    ] = True
    dialect: Annotated[
        Literal["openai", "open-responses"],
        Meta(description="Which Responses is spoken where its two standards differ."),
    ] = "openai"

    store: Annotated[
        str,
        Meta(
            description="Where responses are remembered: none, memory (until the server stops), "
            "sqlite (a file in the user's data directory), sqlite:PATH, or postgresql://… (a "
            "database that servers share; its password in PGPASSWORD)."
        ),
    ] = "sqlite"
    news: Annotated[
        str,
        Meta(
            description="The Redis (redis://HOST:6379) by which servers that share a database hear "
            "of each other; empty is the database itself. Its password in REDIS_PASSWORD."
        ),
    ] = ""
    retention: Annotated[
        float, Meta(ge=1, description="Seconds responses and conversations are kept.")
    ] = 30 * 86_400.0
    log_retention: Annotated[
        float,
        Meta(ge=1, description="Seconds the events of a response are kept, to be replayed."),
    ] = 86_400.0
    max_responses: Annotated[
        int, Meta(ge=1, description="Responses kept at the most; the oldest go first.")
    ] = 100_000
    inherit_instructions: Annotated[
        bool,
        Meta(
            description="Whether a request that goes on from a response and says no instructions "
            "has those of that response."
        ),
    ] = False
    seal_key_env: Annotated[
        str | None,
        Meta(
            description="The environment variable with the key that seals reasoning for clients "
            "that ask for it; without one, a file in the user's data directory has a key."
        ),
    ] = None
    reasoning_vault: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of reasoning each worker remembers for clients that bring calls "
            "back without it; 0 remembers none.",
        ),
    ] = 64 * 1024 * 1024
    resend_unsealed: Annotated[
        bool,
        Meta(
            description="Whether an upstream that cannot open sealed reasoning, and refuses the "
            "request for it, is asked once more without, which is told."
        ),
    ] = True
    requeue: Annotated[
        bool,
        Meta(
            description="Whether a background response whose server died before it said anything "
            "is begun again by another; otherwise it is ended as failed."
        ),
    ] = False
    lease: Annotated[
        float,
        Meta(
            ge=1,
            description="Seconds after which another server may end the runs of one that has "
            "fallen silent.",
        ),
    ] = 30.0
