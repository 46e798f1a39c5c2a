"""An engine as an object in your hand: ask it, read its stream, stop it.

Asynchronous first; the synchronous face drives the same object from a loop of its own. Nothing
here knows a protocol or a socket: that is the business of the engine inside.
"""

from .answer import Answer, AnswerError, Spent, arguments
from .client import Client, SyncClient, SyncStream, connect, connect_sync
from .stream import Stream

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
