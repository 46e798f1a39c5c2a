"""An engine that gets back the reasoning its client could not carry.

What an answer thought before its calls goes into a vault; when the calls come back without it, it
is put before them again, to the byte. Requests that bring no call pass by; how an answer or a
request is spelled is not known here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.core.event import Event, Failed, Finished, ItemAdded, ItemDone, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine, Passed
from dragoman.core.item import Item, Reasoning
from dragoman.core.request import Request

from .vault import Vault
from .wrap import Wrapper, batches, relay


class Recalling(Wrapper):
    """An engine with a vault for what leads to calls."""

    def __init__(self, engine: Engine, vault: Vault | None = None) -> None:
        super().__init__(engine)
        self.vault = Vault() if vault is None else vault

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer, out of what was thought before."""
        async with aclosing(self.batches(request, caller)) as answer:
            async for batch in answer:
                for event in batch:
                    yield event

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same in the batches of the engine inside."""
        if _concerned(request):
            return self._remembered(request, caller)
        return batches(self.engine, request, caller)

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine inside, where nothing is to be put back, or to be kept."""
        return None if _concerned(request) else self.engine

    def relay(
        self, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None] | None:
        """The bytes of the engine inside, where there is nothing to put back."""
        if _concerned(request):
            items, _ = self.vault.recall(caller.tenant, request.model, request.items)
            if items is not request.items:
                return None
        return relay(self.engine, body, request, caller)

    async def _remembered(
        self, request: Request, caller: Caller
    ) -> AsyncGenerator[list[Event], None]:
        items, losses = self.vault.recall(caller.tenant, request.model, request.items)
        asked = request if items is request.items else replace(request, items=items)
        said = _Said()
        try:
            async with aclosing(batches(self.engine, asked, caller)) as answer:
                async for batch in answer:
                    if losses and isinstance(begun := batch[0], Started):
                        batch = [replace(begun, losses=(*begun.losses, *losses)), *batch[1:]]
                    said.take(batch)
                    if isinstance(batch[-1], Finished | Failed):  # whoever has the end may go on
                        self._keep(said, request, caller)
                    yield batch
        finally:  # what was said before a cut may come back too
            self._keep(said, request, caller)

    def _keep(self, said: _Said, request: Request, caller: Caller) -> None:
        for items in said.pop():
            self.vault.keep(caller.tenant, request.model, items)


class _Said:
    """The items of an answer that are done, by choice and place."""

    def __init__(self) -> None:
        self._choices: list[int] = []
        self._items: dict[int, Item] = {}

    def take(self, batch: list[Event]) -> None:
        for event in batch:
            if type(event) is ItemDone:
                self._items[event.index] = event.item
            elif type(event) is ItemAdded:
                self._choices.append(event.choice)

    def pop(self) -> list[list[Item]]:
        """What each choice has said, once."""
        items, self._items = self._items, {}
        said: dict[int, list[Item]] = {}
        for index in sorted(items):
            said.setdefault(self._choices[index], []).append(items[index])
        return list(said.values())


def _concerned(request: Request) -> bool:
    """Whether calls may be made or have been, or reasoning was brought."""
    return bool(request.tools) or Reasoning in map(type, request.items)
