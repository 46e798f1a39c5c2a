"""The Python client: asks an engine, reads its stream, and stops it.

The synchronous client drives the same object on an event loop in a thread. Protocols and sockets
are the business of the engine inside.
"""

from .answer import Answer, AnswerError, Spent, Stream, arguments
from .client import Client, SyncClient, SyncStream, connect, connect_sync

__all__ = [
    "Answer",
    "AnswerError",
    "Client",
    "Spent",
    "Stream",
    "SyncClient",
    "SyncStream",
    "arguments",
    "connect",
    "connect_sync",
]
