"""The routes that only a server with a memory has.

What is done at each stands in the handlers; here is only where they are found.
"""

from __future__ import annotations

from dragoman.server.router import Route
from dragoman.server.settings import Settings
from dragoman.server.watch import Roster

from .completions import PATH as COMPLETIONS
from .completions import Completions
from .conversations import PATH as CONVERSATIONS
from .conversations import Conversations
from .memory import Memory
from .responses import PATH, Responses


def stored(memory: Memory, settings: Settings, roster: Roster) -> tuple[Route, ...]:
    """What can be asked about what is stored."""
    responses = Responses(memory, settings, roster)
    completions = Completions(memory, settings, roster)
    conversations = Conversations(memory, settings, roster)
    return (
        Route("GET", PATH, responses.get),
        Route("POST", PATH, responses.post),
        Route("DELETE", PATH, responses.delete),
        Route("GET", COMPLETIONS, completions.list),
        Route("GET", f"{COMPLETIONS}/", completions.get),
        Route("POST", f"{COMPLETIONS}/", completions.post),
        Route("DELETE", f"{COMPLETIONS}/", completions.delete),
        Route("POST", CONVERSATIONS, conversations.create),
        Route("GET", f"{CONVERSATIONS}/", conversations.get),
        Route("POST", f"{CONVERSATIONS}/", conversations.post),
        Route("DELETE", f"{CONVERSATIONS}/", conversations.delete),
    )
