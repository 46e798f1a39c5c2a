"""Resolves what a request references: responses, conversations, items, cached reasoning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted, unsupported
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Unknown,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.reasoning import ASKING, ENCRYPTED, ReasoningCache
from dragoman.stores.base import (
    AT_ONCE,
    Record,
    Room,
    StoredAnswer,
    StoreError,
    TooMuchError,
    call_digest,
    named,
)
from dragoman.stores.serialize import pack
from dragoman.stores.sql import Store

NOT_STORED = Loss("store", "dropped", "this server stores no responses")
NOT_ENCRYPTED = Loss(
    ASKING, "dropped", "this server encrypts no reasoning; what the model sent is stored"
)
NOTHING_STORED = "this server stores nothing that could be referred to"


def without_store(request: Request) -> tuple[Request, tuple[Loss, ...]]:
    """The request as the engine gets it, and what is not done as it was asked.

    Raises FaultError for a request that cannot be answered without a store.
    """
    if request.previous_response_id is not None:
        name = "previous_response_id"
        problem = (
            f"{name}: there is no response {quoted(request.previous_response_id)}; {NOTHING_STORED}"
        )
        raise FaultError(Fault("previous_response_not_found", problem, "client", name))
    if request.conversation is not None:
        raise FaultError(unsupported(NOTHING_STORED, "conversation"))
    if request.background:
        raise FaultError(
            unsupported("needs a store, and this server has none (--store)", "background")
        )
    for number, item in enumerate(request.items):
        if isinstance(item, ItemReference):
            raise FaultError(unsupported(NOTHING_STORED, f"input[{number}]"))
    losses: tuple[Loss, ...] = (NOT_STORED,) if request.store else ()
    if ENCRYPTED in request.include:
        losses += (NOT_ENCRYPTED,)
    if request.store is None:
        return replace(request, extra=decided(request.extra)), losses
    return replace(request, store=False), losses


def decided(extra: Extra | None) -> Extra | None:
    """The fields without the note that `store` was left out: an upstream might store then."""
    left: Extra = {}
    for wire, fields in (extra or {}).items():
        if others := {name: value for name, value in fields.items() if name != "store"}:
            left[wire] = others
    return left or None


Recent = dict[str, Record]
"""What a connection remembers, by its id; the request of each record is whole."""


def too_much(field: str, room: Room) -> FaultError:
    """Why a request is refused that would become too large by what a field stands for."""
    problem = (
        f"{field}: what it stands for makes the request larger than {room.most} bytes, which is "
        "this server's limit (body_limit). Begin anew with what matters, or a summary."
    )
    return FaultError(Fault("too_large", problem, "client", field))


class Asked(Struct, frozen=True):
    """What a request asks for: `whole` is as the engine gets it, `conversation` the id of the one
    it belongs to, `answers` are those of the chain that it goes on from, and `size` how many bytes
    of what is stored it brings along."""

    whole: Request
    conversation: str | None = None
    answers: tuple[StoredAnswer, ...] = ()
    size: int = 0


async def understand(
    request: Request,
    store: Store,
    tenant: str,
    *,
    most: int | None = None,
    inherit: bool = False,
    id: str | None = None,
    recent: Recent | None = None,
    count: Callable[[int], None] | None = None,
) -> Asked:
    """Find what a request builds on, in `recent` first. `inherit` says whether instructions
    left out are those of the response before; with the `id` of its response the items have the ids
    that they are known by here, for which an engine has no use. `count` is told of what is large,
    before it is read.

    Raises FaultError, naming the field, when something it refers to is not there, or is more than
    `most` bytes.
    """
    most = Room().most if most is None else most
    recent, room = recent or {}, Room(most, most, count)
    given = request.conversation
    conversation: str | None = given["id"] if isinstance(given, dict) else given
    before: tuple[Item, ...] = ()
    records: tuple[Record, ...] = ()
    instructions = request.instructions
    if (previous := request.previous_response_id) is not None:
        name = "previous_response_id"
        near = recent.get(bare(previous))
        try:
            records = await store.chain(tenant, bare(previous), room) if near is None else (near,)
        except TooMuchError:
            raise too_much(name, room) from None
        if not records:
            problem = f"{name}: there is no response {quoted(previous)}, or no longer"
            raise FaultError(Fault("previous_response_not_found", problem, "client", name))
        if records[-1].running:
            problem = f"{quoted(previous)} is still being made; wait until it has ended"
            raise FaultError(bad_request(problem, name))
        before = await _history(store, tenant, records, recent, room, ids=id is not None)
        if near is not None:
            size = len(pack(before))
            room.left -= size
            if room.left < 0:
                raise too_much(name, room)
            if size > AT_ONCE:
                room.hold(size)
        if inherit and instructions is None:
            instructions = records[-1].request.instructions
    elif conversation is not None:
        try:
            page = await store.list_items(tenant, bare(conversation), room=room)
        except TooMuchError:
            raise too_much("conversation", room) from None
        if page is None:
            raise FaultError(no_conversation(conversation, "conversation"))
        before = await _resolved(page.items, store, tenant, recent, room)
    own = request.items if id is None else named(request.items, id)
    items = before + await _resolved(own, store, tenant, recent, room)
    if previous is not None or conversation is not None:
        check_outputs(items, len(before))
    whole = for_engine(request, items, instructions)
    answers = [StoredAnswer(r.request.model, r.response) for r in records if r.response is not None]
    return Asked(whole, conversation, tuple(answers), room.most - room.left)


_OUTPUTS = frozenset((FunctionCallOutput, CustomToolCallOutput))
REFERRING = frozenset((ItemReference,))
RECALLING = frozenset((ItemReference, FunctionCall, CustomToolCall))
"""The items that make it necessary to look something up: what they refer to, or, where the answer
is stored, the reasoning of the calls that are brought back."""


def for_engine(
    request: Request, items: tuple[Item, ...], instructions: str | tuple[Item, ...] | None
) -> Request:
    """The request as an engine gets it, whole: with these items, and nothing to look up."""
    return replace(
        request,
        extra=request.extra and decided(request.extra),
        items=items,
        instructions=instructions,
        previous_response_id=None,
        conversation=None,
        background=None,
        store=False,
    )


def check_outputs(items: Sequence[Item], start: int) -> None:
    """Raises FaultError for an output, among the items from `start` on, that no call asked for."""
    if _OUTPUTS.isdisjoint(map(type, items[start:])):
        return
    calls: set[str] = set()
    for place, item in enumerate(items):
        match item:
            case FunctionCall() | CustomToolCall():
                calls.add(item.call_id)
            case Unknown(value={"call_id": str(call_id)}):
                calls.add(call_id)
            case Compaction():
                return
            case FunctionCallOutput() | CustomToolCallOutput() if (
                place >= start and item.call_id not in calls
            ):
                problem = f"No tool call found for the output with call_id {quoted(item.call_id)}"
                raise FaultError(bad_request(problem, f"input[{place - start}].call_id"))


async def _history(
    store: Store, tenant: str, records: Sequence[Record], recent: Recent, room: Room, ids: bool
) -> tuple[Item, ...]:
    """All that was asked and answered in a chain, the earliest first."""
    items: list[Item] = []
    first = records[0]
    if first.conversation is not None:  # it went on from a conversation
        page = await store.list_items(tenant, first.conversation, room=Room(count=room.count))
        own = {item.id for item in named(first.request.items, first.id)}
        for item in page.items if page is not None else ():
            if item.id in own:
                break
            items.append(item)
    for record in records:
        given = named(record.request.items, record.id) if ids else record.request.items
        items += await _resolved(given, store, tenant, recent, room)
        items += record.response.output if record.response is not None else ()
    return tuple(items)


async def _resolved(
    items: Sequence[Item], store: Store, tenant: str, recent: Recent, room: Room
) -> tuple[Item, ...]:
    """The items, with those they refer to in the place of references."""
    if ItemReference not in map(type, items):
        return tuple(items)
    records = recent.values()
    near = {item.id: item for record in reversed(records) for item in record.items}
    near |= {item.id: item for item in items if not isinstance(item, ItemReference)}
    wanted = {item.id for item in items if isinstance(item, ItemReference)} - near.keys()
    near |= await store.find_items(tenant, wanted, room)
    sizes: dict[str, int] = {}
    found: list[Item] = []
    for place, item in enumerate(items):
        if isinstance(item, ItemReference):
            meant = near.get(item.id)
            if meant is None:
                problem = f"There is no item {quoted(item.id)}"
                raise FaultError(Fault("not_found", problem, "client", f"input[{place}].id"))
            if item.id not in sizes:
                sizes[item.id] = len(pack(meant))
            try:
                room.read(sizes[item.id])
            except TooMuchError:
                raise too_much(f"input[{place}].id", room) from None
            found.append(meant)
        else:
            found.append(item)
    return tuple(found)


def bare(id: str) -> str:
    """An id without the prefix a wire put before it.

    >>> bare("resp_1"), bare("conv_1"), bare("1")
    ('1', '1', '1')
    """
    for prefix in ("resp_", "conv_", "chatcmpl-"):
        if id.startswith(prefix):
            return id[len(prefix) :]
    return id


def no_conversation(id: str, param: str | None = None) -> Fault:
    """The fault for a conversation that is not there."""
    return Fault(
        "not_found", f"There is no conversation {quoted(id)}, or no longer.", "client", param
    )


async def recalled(asked: Asked, store: Store, tenant: str) -> tuple[Request, tuple[Loss, ...]]:
    """The whole request with the thoughts that are missing in it, and what was left out because
    another model encrypted it. The same request, where nothing is to be done."""
    whole = asked.whole
    # The thoughts of a chain are in it; only whose they are may matter.
    answers = [answer for answer in asked.answers if answer.model != whole.model]
    near = {id(item) for answer in asked.answers for item in answer.response.output}
    calls = [i for i in whole.items if isinstance(i, FunctionCall | CustomToolCall)]
    if digests := dict.fromkeys([call_digest(call) for call in calls if id(call) not in near]):
        with suppress(StoreError):  # an answer without its past is better than none
            answers += await store.find_answers(tenant, tuple(digests))
    if not answers:
        return whole, ()
    cache = ReasoningCache()
    for answer in answers:
        for choice in sorted(set(answer.response.choices)) or (0,):
            cache.store(tenant, answer.model, answer.response.choice(choice))
    items, losses = cache.restore(tenant, whole.model, whole.items)
    return (whole if items is whole.items else replace(whole, items=items)), losses
