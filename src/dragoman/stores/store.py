"""The seam of memory: what every store promises, whatever it keeps things in.

Only signatures live here; one conformance suite holds for all backends. A method that writes
returns when what it wrote will be there after a crash of this process. A method that takes a
tenant finds nothing of another's; unknown ids are None or False, never an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dragoman.core.item import JSON, Item
from dragoman.core.response import Response

from .record import Answer, Conversation, Items, Letter, Paging, Record, Records, Stretch


class StoreError(Exception):
    """The store could not do what was asked; the message says what failed."""


class Responses(Protocol):
    """Responses, and the log of events each came by."""

    async def begin(self, record: Record) -> None:
        """Keep a run that is about to start."""
        ...

    async def append(self, id: str, stretch: Stretch) -> None:
        """Add to the log of a run. A stretch that is there already, or follows a gap, is an error;
        so is one for a run that has ended or is not known."""
        ...

    async def finish(
        self,
        id: str,
        response: Response,
        stretch: Stretch | None = None,
        said: Sequence[Item] = (),
        letters: Sequence[Letter] = (),
    ) -> bool:
        """End a run with what came of it, with the last stretch of its log, with what it adds to
        its conversation, and with the letters that tell of it, in one step. An item whose id is
        taken there gets another. False, and nothing is written, when the run had ended before or
        is not known."""
        ...

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        ...

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it, the earliest first; empty when it, or one it
        builds on, is not known."""
        ...

    async def find(self, tenant: str, item: str) -> Item | None:
        """The item of any response, asked or answered, with this id."""
        ...

    async def answers(self, tenant: str, marks: Sequence[str]) -> tuple[Answer, ...]:
        """The answers whose calls have these marks (see `calls`), each once. Of several that made
        the same call, it is the latest; those without reasoning are not found."""
        ...

    async def log(self, id: str, first: int = 0) -> tuple[Stretch, ...]:
        """The log from this place on, in order; nothing at its end."""
        ...

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        ...

    async def page(self, tenant: str, wire: str | None, paging: Paging) -> Records:
        """The responses of a tenant (on one wire, or on all) by the time of their creation."""
        ...

    async def label(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a response other metadata."""
        ...

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log. A run that goes on is asked to end as well."""
        ...


class Leases(Protocol):
    """Which server runs what, and until when it has promised to."""

    async def renew(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on, because somebody
        wants their end, or has deleted or ended them."""
        ...

    async def cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run, wherever it runs; False when it is not known."""
        ...

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs for which a promise has run out, whoever gave it; each goes to one
        server only."""
        ...


class Conversations(Protocol):
    """Conversations and their items."""

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        ...

    async def conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        ...

    async def relabel(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a conversation other metadata."""
        ...

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        ...

    async def extend(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items, each with an id of its own, at the end."""
        ...

    async def items(self, tenant: str, id: str, paging: Paging | None = None) -> Items | None:
        """A page of a conversation's items, or all of them in their order."""
        ...

    async def item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        ...

    async def remove(self, tenant: str, id: str, item: str) -> bool:
        """Forget one item."""
        ...


class Outbox(Protocol):
    """Letters, until they have arrived."""

    async def due(self, now: float, until: float, most: int = 20) -> tuple[Letter, ...]:
        """Take out letters whose time has come; one that is not settled comes again at `until`.
        Each goes to one server only."""
        ...

    async def settle(self, id: str, due: float | None = None) -> None:
        """Forget a letter, or have it come again at another time."""
        ...


class Store(Responses, Leases, Conversations, Outbox, Protocol):
    """All that a server remembers."""

    async def sweep(self, now: float) -> int:
        """Forget what is older than the store was told to keep, and what is more than it was told
        to hold, the oldest first; how many responses that were. Runs that go on stay."""
        ...

    async def ready(self) -> None:
        """Return when the store can be used. Raises StoreError, within a minute or so, that says
        what is in the way and what to do about it."""
        ...

    async def close(self) -> None:
        """Write what is waiting and let go."""
        ...
