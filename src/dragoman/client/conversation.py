"""A conversation over a session: turns, functions, and full-duplex speech, for programs.

Events of the session are processed at once and never wait for the program's own code: tools, the
loudspeaker and readers are tasks of their own. Every wait ends: with its event, its
error, the end of the session, or after `patience` seconds of silence; and every stream ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from functools import partial
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from dragoman.core.conversation import as_text, merged
from dragoman.core.error import Fault, FaultError, hint
from dragoman.core.event import Delta
from dragoman.core.interfaces import ANYONE, Caller, Engine, Secret
from dragoman.core.item import Audio, FunctionCall, Item, Message
from dragoman.core.response import Usage
from dragoman.core.session_values import (
    Answer,
    Append,
    Cancel,
    Command,
    Configure,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    ItemDeleted,
    Refused,
    Respond,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionCreated,
    SessionEvent,
    SessionResponse,
    SessionUpdated,
    TranscriptionCompleted,
)
from dragoman.engines.base import new_id
from dragoman.engines.remote_session import RemoteSession
from dragoman.engines.session import LiveSession, TurnSession, Voice
from dragoman.tools.function import as_tool
from dragoman.tools.run import Context, Result, Runner, Tool

from .client import Client, engine_of
from .duplex import ROUNDS, Duplex, Listener, Loudspeaker, Speech, played, sound_in, text_of

PATIENCE = 60.0
"""Seconds without any sign of what is waited for."""
_MARK = "client_event_id"
"""The label by which a response is known as the one that was asked for."""


class Turn(Struct, frozen=True):
    """One answer of the model. `status` is "completed", "cancelled", "incomplete" or "failed"."""

    response: SessionResponse

    @property
    def status(self) -> str:
        """How it ended."""
        return self.response.status

    @property
    def text(self) -> str:
        """The text of the answer, or its transcript."""
        return "".join(text_of(item) for item in self.response.output)

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The functions that the model asks for."""
        return tuple(item for item in self.response.output if isinstance(item, FunctionCall))

    @property
    def usage(self) -> Usage:
        """The usage; its counts are None where they were not reported."""
        return self.response.usage or Usage()


class Conversation:
    """A session with a model, and its history.

    `target` is the address of a server that speaks Realtime (`wss://…/v1`), or else whatever
    `dragoman.connect` takes: then the session is here, around that engine. `tools` are functions,
    or tools, which are run when the model calls them. `changes` are fields of
    `core.session_values.SessionConfig`.

    >>> async def main() -> str:
    ...     async with Conversation("script", model="script") as talk:
    ...         return (await talk.say("Count to two.")).text
    >>> asyncio.run(main())
    '1, 2.'
    """

    def __init__(
        self,
        target: str | Engine,
        *,
        model: str = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        history: Iterable[Item] = (),
        key: Secret | str | None = None,
        beta: bool = False,
        voice: Voice | None = None,
        caller: Caller = ANYONE,
        patience: float = PATIENCE,
        **changes: Any,
    ) -> None:
        self._runner = Runner([as_tool(each) for each in tools])
        self._given = [*history]
        self._caller = caller
        self._patience = patience
        self._changes = _shaped(changes)
        self._make: Callable[[], LiveSession]
        if isinstance(target, str) and target.startswith(("ws://", "wss://")):
            self._make = partial(RemoteSession, target, model, self, key=key, beta=beta)
        else:
            config = SessionConfig(model=model, turn_detection=None)
            engine = Client(engine_of(target, {} if key is None else {"key": key}))
            self._make = partial(TurnSession, engine, config, caller, self, voice)
        self.live: LiveSession = self._make()
        self.state = "new"
        self.config = SessionConfig()
        self.errors: list[Fault] = []
        """Errors that were no answer to something asked here."""
        self._order: list[str] = []
        self._items: dict[str, Item] = {}
        self.active: set[str] = set()
        self._over: set[str] = set()
        self._left: set[str] = set()  # answers that are being cancelled
        self._unstarted: set[str] = set()  # labels of those to cancel as soon as they begin
        self.listeners: set[Listener] = set()
        self.fault: Fault | None = None
        self._labels = False  # the server repeats the labels of responses

    @property
    def history(self) -> tuple[Item, ...]:
        """The conversation so far, at any time."""
        return tuple([self._items[id] for id in self._order])

    # ---- opening and closing -------------------------------------------------------------------

    async def connect(self) -> Self:
        """Open the session, configure it, and put the history into it. Raises FaultError."""
        if self.state != "new":
            raise RuntimeError(f"the conversation is {self.state}: it connects once")
        self.state = "connecting"
        listener = self.listen()
        try:
            await self.live.open()
            await self._until(listener, SessionCreated)
            changes = {"tools": self._runner.offered(), **self._changes}
            await self.configure(**changes)
            for item in self._given:
                if (text := as_text(item)) is not None:
                    await self.add(text)
        except BaseException:
            await self.close()
            raise
        finally:
            self.listeners.discard(listener)
        self.state = "connected"
        return self

    async def reconnect(self) -> Self:
        """Open a lost session again, with its configuration and its history. Its sound is lost:
        spoken messages are there as transcripts. Raises FaultError; then it can be tried
        again."""
        if self.state != "disconnected":
            raise RuntimeError(f"the conversation is {self.state}: it was not lost")
        await self.live.close()
        order, items, fault = self._order, self._items, self.fault
        self._given, self._order, self._items = [*self.history], [], {}
        self.live, self.state, self.fault = self._make(), "new", None
        try:
            return await self.connect()
        except BaseException:
            self._order, self._items = order, items
            self.state, self.fault = "disconnected", fault
            raise

    async def close(self) -> None:
        """End the session. Its history can still be read."""
        self.state = "terminating"
        await self.live.close()
        self.ended(Fault("cancelled", "The conversation was closed.", "client"))
        self.state = "closed"

    async def __aenter__(self) -> Self:
        return await self.connect() if self.state == "new" else self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ---- single commands ------------------------------------------------------------------------

    async def configure(self, **changes: Any) -> SessionConfig:
        """Change the configuration. Raises FaultError where the session refuses."""
        changes = _shaped(changes)
        await self.ask(Configure(changes=changes), SessionUpdated)
        self._changes |= changes
        return self.config

    async def add(self, item: Item | str) -> Item:
        """Put an item, or a user's text, at the end of the conversation."""
        if isinstance(item, str):
            item = Message("user", item)
        given: object = item
        if not isinstance(given, Struct):
            kind = type(given).__name__
            raise TypeError(f"a conversation takes texts and items (Message, …), and not {kind}")
        if item.id is None:
            item = replace(item, id=f"item_{new_id()[:24]}")
        id = item.id or ""
        await self.ask(
            CreateItem(item=item),
            ConversationItemAdded,
            lambda event: event.item.id == id,
        )
        return self._items.get(id, item)

    def append(self, audio: bytes) -> None:
        """Give the session more of the user's sound: PCM16, 24 kHz."""
        self.live.send(Append(audio=audio))

    def interrupt(self) -> None:
        """Cancel the model's answer, if it is answering."""
        if self.active:
            self._left |= self.active
            self.live.send(Cancel())

    # ---- turns -----------------------------------------------------------------------------------

    async def say(
        self, *items: Item | str, play: Loudspeaker | None = None, **changes: Any
    ) -> Turn:
        """Add these, and have the model answer; `play` gets its sound. Raises FaultError where the
        answer fails, the session ends, or nothing comes."""
        turn = None
        async for event in self.events(*items, **changes):
            if isinstance(event, ResponseDone):
                turn = Turn(event.response)
            elif play is not None and _is(event, "audio"):
                await played(play, sound_in(_data(event)))
        if turn is None or turn.response.status == "failed":
            fault = turn and turn.response.fault
            raise FaultError(fault or Fault("upstream_error", "The answer failed.", "upstream"))
        return turn

    async def stream(self, *items: Item | str, **changes: Any) -> AsyncGenerator[str, None]:
        """The same, as pieces of the text, written or spoken."""
        async with aclosing(self.events(*items, **changes)) as events:
            async for event in events:
                if _is(event, "text") or _is(event, "transcript"):
                    yield _data(event)
                elif isinstance(event, ResponseDone) and event.response.fault is not None:
                    raise FaultError(event.response.fault)

    async def events(
        self, *items: Item | str, **changes: Any
    ) -> AsyncGenerator[SessionEvent, None]:
        """The same, as the events of the answer. One that is left is cancelled."""
        changes = _shaped(changes)
        for each in items:
            await self.add(each)
        for _ in range(2):  # in which the loop closes a stream that was left
            await asyncio.sleep(0)
        listener, mark, id = self.listen(), new_id(), ""
        over = True
        try:
            while self._left or self._unstarted:
                await self.next_event(listener)
            command = Respond(event_id=mark, metadata={_MARK: mark}, changes=changes)
            self.live.send(command)
            over = False
            while not over:
                event = await self.next_event(listener)
                match event:
                    case Refused(event_id=about, fault=fault) if about in (mark, None) and not id:
                        over = True
                        raise FaultError(fault)
                    case ResponseCreated(response=response):
                        id = id or (response.id if self._is_ours(mark, event) else "")
                    case ResponseDone(response=response) if response.id == id:
                        over = True
                        yield event
                    case Answer(response_id=about) if about == id:
                        yield event
                    case _:
                        pass
        finally:
            self.listeners.discard(listener)
            if not over and self.state == "connected":
                if id:
                    self._cancel(id)
                else:
                    self._unstarted.add(mark)
                    while not listener.queue.empty():  # it may have begun just now
                        self._settle(listener.queue.get_nowait())

    async def full_round(
        self, *given: Item | str, rounds: int = ROUNDS, **changes: Any
    ) -> AsyncGenerator[Item, None]:
        """Add these, and continue until the model has answered without calling a function: yields
        messages, calls and results, item by item. Calls of one answer are run at once, and their
        results sent in the order of the calls, with one request for the next answer."""
        retries, items = True, given
        for number in range(rounds + 1):
            asked = dict(changes)
            if number == rounds or not retries:
                asked["tool_choice"] = "none"
            turn = await self.say(*items, **asked)
            for item in turn.response.output:
                yield item
            if not turn.calls or turn.status != "completed":
                return
            results = await self.run(turn.calls)
            for result in results:
                yield result.output
            retries = all(result.retry for result in results if result.error)
            items = tuple([result.output for result in results])
            if not any(result.after == "model" for result in results):
                for output in items:
                    await self.add(output)
                return

    async def run(self, calls: Iterable[FunctionCall]) -> list[Result]:
        """Run calls, all at once."""
        return await asyncio.gather(
            *[self._runner.run(call, Context(call, self._caller)) for call in calls]
        )

    async def respond(self, **changes: Any) -> None:
        """Have the model answer, with these changes, as soon as it answers nothing else; returns
        when it begins."""
        listener = self.listen()
        try:
            while True:
                while self.active:
                    await self.next_event(listener)
                mark = new_id()
                ours = partial(self._is_ours, mark)
                try:
                    await self.ask(
                        Respond(changes=changes, metadata={_MARK: mark}), ResponseCreated, ours
                    )
                    return
                except FaultError:
                    if not self.active or self.fault is not None:
                        raise  # or else another one was quicker
        finally:
            self.listeners.discard(listener)

    # ---- full duplex ---------------------------------------------------------------------------

    async def full_duplex(
        self, source: AsyncIterable[bytes], sink: Loudspeaker | None = None
    ) -> AsyncGenerator[Speech, None]:
        """Speak and listen at once: `source` gives the user's sound, `sink` plays the model's. A
        `Speech` comes for each message, of either side, as it begins; several may go on at a time.

        It ends when the source has, and every turn is answered. Raises what the source or the
        sink raises, and FaultError where the session ends.
        """
        duplex = Duplex(self, source, sink)
        try:
            while (speech := await duplex.speeches.get()) is not None:
                yield speech
            duplex.check()
        finally:
            await duplex.close()

    # ---- events of the session -----------------------------------------------------------------

    def receive(self, events: list[SessionEvent]) -> None:
        """Process events: update the history, then pass them on to the listeners."""
        for event in events:
            if isinstance(event, ResponseDone) and event.response.id in self._over:
                continue  # a `cancelled` behind a `completed`
            self._mirror(event)
            for listener in self.listeners:
                listener.queue.put_nowait(event)
            if self._unstarted:
                self._settle(event)

    def _cancel(self, id: str) -> None:
        if id in self.active:
            self._left.add(id)
            # by an event id: where it ends meanwhile, the refusal is about no later turn
            self.live.send(Cancel(event_id=new_id(), response_id=id))

    def _settle(self, event: SessionEvent | None) -> None:
        """Cancel an answer that was left before it began, and forget one that was refused."""
        match event:
            case ResponseCreated(response=response):
                for mark in [each for each in self._unstarted if self._is_ours(each, event)]:
                    self._unstarted.discard(mark)
                    self._cancel(response.id)
            case Refused(event_id=None):
                self._unstarted.clear()
            case Refused(event_id=mark):
                self._unstarted.discard(mark)
            case _:
                pass

    def ended(self, fault: Fault) -> None:
        """The session is over: end every wait."""
        if self.fault is None:
            self.fault = fault
            self.active.clear()
            self._left.clear()
            self._unstarted.clear()
            if self.state == "connected":
                self.state = "disconnected"
            for listener in self.listeners:
                listener.queue.put_nowait(None)

    def _mirror(self, event: SessionEvent) -> None:
        match event:
            case SessionCreated(config=config) | SessionUpdated(config=config):
                self.config = config
            case ConversationItemAdded(item=item, previous_item_id=previous):
                id = item.id or ""
                if id not in self._items:
                    known = previous in self._items
                    place = self._order.index(previous or "") + 1 if known else 0
                    self._order.insert(place if known or previous is None else len(self._order), id)
                self._items[id] = item
            case ConversationItemDone(item=item) if item.id in self._items:
                self._items[item.id or ""] = merged(self._items[item.id or ""], item)
            case ItemDeleted(item_id=id) if id in self._items:
                del self._items[id]
                self._order.remove(id)
            case TranscriptionCompleted(item_id=id, content_index=number, transcript=text):
                have = self._items.get(id)
                if isinstance(have, Message) and number < len(have.parts):
                    parts = [*have.parts]
                    if isinstance(part := parts[number], Audio):
                        parts[number] = replace(part, transcript=text.strip())
                    self._items[id] = replace(have, content=tuple(parts))
            case ResponseCreated(response=response):
                self.active.add(response.id)
                self._labels = self._labels or _MARK in (response.metadata or {})
            case ResponseDone(response=response):
                self.active.discard(response.id)
                self._left.discard(response.id)
                self._over.add(response.id)
                for each in response.output:  # the only sign of it in the beta dialect
                    if (have := self._items.get(each.id or "")) is not None:
                        self._items[each.id or ""] = merged(have, each)
            case Refused(event_id=None, fault=fault):
                self.errors.append(fault)

    def _is_ours(self, mark: str, event: ResponseCreated) -> bool:
        """Whether an answer is the one that was asked for with this label, as far as the server
        repeats labels; a detector's answers have none."""
        label = (event.response.metadata or {}).get(_MARK)
        return label == mark or (label is None and not self._labels)

    def listen(self) -> Listener:
        listener = Listener()
        self.listeners.add(listener)
        return listener

    async def next_event(self, listener: Listener) -> SessionEvent:
        """The next event. Raises FaultError at the end of the session, and after long silence."""
        if self.fault is not None and listener.queue.empty():
            raise FaultError(self.fault)
        try:
            async with asyncio.timeout(self._patience):
                event = await listener.queue.get()
        except TimeoutError:
            message = f"The session sent nothing for {self._patience:g} s (patience)."
            raise FaultError(Fault("upstream_timeout", message, "upstream")) from None
        if event is None:
            raise FaultError(self.fault or Fault("upstream_cut", "It ended.", "upstream"))
        return event

    async def _until(
        self,
        listener: Listener,
        kind: type,
        fits: Callable[[Any], bool] = lambda _: True,
        event_id: str | None = None,
    ) -> SessionEvent:
        """Wait for an event; what is refused meanwhile, by this id or by none, is raised."""
        while True:
            event = await self.next_event(listener)
            if isinstance(event, Refused) and event.event_id in (event_id, None):
                raise FaultError(event.fault)
            if isinstance(event, kind) and fits(event):
                return event

    async def ask(
        self, command: Command, kind: type, fits: Callable[[Any], bool] = lambda _: True
    ) -> SessionEvent:
        """Send a command, and wait for what answers it: listening began before."""
        listener, event_id = self.listen(), new_id()
        try:
            self.live.send(replace(command, event_id=event_id))
            return await self._until(listener, kind, fits, event_id)
        finally:
            self.listeners.discard(listener)


_TYPES = {field.name: field.type for field in fields(SessionConfig)}


def _shaped(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes to a configuration. Raises TypeError for unknown ones, and other types.

    >>> _shaped({"temperatur": 1})
    Traceback (most recent call last):
        ...
    TypeError: there is no setting 'temperatur'; did you mean temperature?
    """
    for name, value in changes.items():
        if name not in _TYPES:
            raise TypeError(f"there is no setting {name!r}{hint(name, _TYPES)}")
        try:
            msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise TypeError(f"{name}: {error}") from None
    return dict(changes)


def _is(event: SessionEvent, kind: str) -> bool:
    return isinstance(event, Answer) and isinstance(event.event, Delta) and event.event.kind == kind


def _data(event: Any) -> str:
    return str(event.event.data)
