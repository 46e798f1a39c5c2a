"""Resolves what a request references: responses, conversations, items, cached reasoning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted, unsupported
from dragoman.core.item import (
    RECORD,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    Extra,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Unknown,
    place_behind,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.reasoning import ASKING, ENCRYPTED
from dragoman.engines.reasoning_cache import ReasoningCache
from dragoman.server.settings import Settings
from dragoman.stores.base import (
    APART,
    AT_ONCE,
    Record,
    Room,
    StoredAnswer,
    StoreError,
    TooMuchError,
    call_digest,
    latest,
)
from dragoman.stores.serialize import size_of
from dragoman.stores.sql import Store
from dragoman.wire.json import VALUE
from dragoman.wire.responses.items import RESULTS
from dragoman.wire.responses.request import unasked

NOT_STORED = Loss("store", "dropped", "this server stores no responses")
NOT_ENCRYPTED = Loss(
    ASKING, "dropped", "this server encrypts no reasoning; what the model sent is stored"
)
NOTHING_STORED = "this server stores nothing that could be referred to"


def without_store(request: Request) -> tuple[Request, tuple[Loss, ...]]:
    """The request as the engine gets it, and its losses.

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
    """The fields without the one for an absent `store`: an upstream might store then."""
    left: Extra = {}
    for wire, fields in (extra or {}).items():
        if others := {name: value for name, value in fields.items() if name != "store"}:
            left[wire] = others
    return left or None


Recent = dict[str, Record]
"""The records cached by a connection, by id; the request of each is whole."""


def too_much(field: str, room: Room, items: bool = False) -> FaultError:
    """The fault for a request whose references make it too large: too
    many items, or bytes."""
    most = f"{room.items} items" if items else f"{room.most} bytes"
    problem = (
        f"{field}: what it stands for makes the request larger than {most}, which is this server's "
        f"limit ({'history_items' if items else 'body_limit'}). Begin anew with what matters, or a "
        "summary."
    )
    return FaultError(Fault("too_large", problem, "client", field))


def room_of(settings: Settings, count: Callable[[int], None] | None = None) -> Room:
    """The memory for a request with everything it references."""
    most = settings.body_limit
    return Room(most, most, count, items=settings.history_items)


class Asked(Struct, frozen=True):
    """A resolved request: `whole` is as the engine gets it, `conversation` the id of its
    conversation and `after` that of the last item there ("" without one), `answers` are those of
    the chain that it continues, and `size` the bytes of stored items in it. `before` counts its
    first items by origin: the input of a response, by its id, or, with an empty id, items that
    have ids of their own."""

    whole: Request
    conversation: str | None = None
    after: str | None = None
    answers: tuple[StoredAnswer, ...] = ()
    size: int = 0
    before: tuple[tuple[str, int], ...] = ()


async def understand(
    request: Request,
    store: Store,
    tenant: str,
    room: Room,
    *,
    inherit: bool = False,
    recent: Recent | None = None,
) -> Asked:
    """Resolve the references of a request, in `recent` first. With `inherit`, absent
    instructions are those of the previous response.

    Raises FaultError, naming the field, when something it refers to does not exist, or there is no
    room for it.
    """
    recent = recent or {}
    given = request.conversation
    conversation: str | None = given["id"] if isinstance(given, dict) else given
    before: tuple[Item, ...] = ()
    whose: list[tuple[str, int]] = []
    records: tuple[Record, ...] = ()
    after: str | None = None
    instructions = request.instructions
    if (previous := request.previous_response_id) is not None:
        name = "previous_response_id"
        near = recent.get(bare(previous))
        try:
            records = await store.chain(tenant, bare(previous), room) if near is None else (near,)
            last = None if records else await store.get(tenant, bare(previous), room)
        except TooMuchError:
            raise too_much(name, room) from None
        if not records:
            problem = f"{name}: there is no response {quoted(previous)}, or no longer"
            if last is not None:
                problem = f"{name}: a response that {quoted(previous)} goes on from was deleted"
            raise FaultError(Fault("previous_response_not_found", problem, "client", name))
        if records[-1].running:
            problem = f"{quoted(previous)} is still being made; wait until it has ended"
            raise FaultError(bad_request(problem, name))
        earlier = await earlier_items(store, records[0], Room(count=room.count), recent)
        if earlier is None:
            problem = f"{name}: the conversation that {quoted(previous)} goes on from was deleted"
            raise FaultError(Fault("previous_response_not_found", problem, "client", name))
        there = len(earlier) + len(request.items)
        for record in records:
            there += len(record.request.items)
            there += len(record.response.output) if record.response is not None else 0
        if there > room.items:
            raise too_much(name, room, items=True)
        before, whose = await _history(store, tenant, earlier, records, recent, room)
        if near is not None:
            size = await store.apart(near.size, size_of, before)
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
        if len(page.items) + len(request.items) > room.items:
            raise too_much("conversation", room, items=True)
        after = (page.items[-1].id or "") if page.items else ""
        before = await _resolved(page.items, store, tenant, recent, room)
        whose = [("", len(before))]
    # As in a body, each value counts beside its bytes.
    room.hold(VALUE * sum([len(item.parts) for item in before if isinstance(item, Message)]))
    items = before + await _resolved(request.items, store, tenant, recent, room)
    if previous is not None or conversation is not None:
        check_outputs(items, len(before))
    whole = for_engine(request, items, instructions)
    answers = [
        StoredAnswer(record.request.model, record.response, record.place)
        for record in records
        if record.response is not None
    ]
    size = room.most - room.left
    return Asked(whole, conversation, after, tuple(answers), size, tuple(whose))


_OUTPUTS = frozenset((FunctionCallOutput, CustomToolCallOutput, Unknown))
REFERRING = frozenset((ItemReference,))
_CALLS = (FunctionCall, CustomToolCall)
RECALLING = frozenset((ItemReference, FunctionCall, CustomToolCall, Unknown))
"""Items that need a lookup: references, and, where the answer is stored, calls that the client
sends back, for their reasoning, and calls that this server ran, for their
results."""
RAN = frozenset((*RESULTS, "mcp_call", "mcp_approval_request"))


def for_engine(
    request: Request, items: tuple[Item, ...], instructions: str | tuple[Item, ...] | None
) -> Request:
    """The request as an engine gets it: with these items, and without references."""
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
    """Raises FaultError for an output or a consent, among the items from `start` on, that nothing
    asked for."""
    if _OUTPUTS.isdisjoint(map(type, items[start:])):
        return
    calls, asked = set[str](), set[str | None]()
    for place, item in enumerate(items):
        match item:
            case Unknown(kind="mcp_approval_request"):
                asked.add(item.id)
            case Unknown(kind="mcp_approval_response", value={"approval_request_id": str(id)}):
                if place >= start and id not in asked:
                    raise unasked(id, f"input[{place - start}]")
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


async def earlier_items(
    store: Store, record: Record, room: Room, recent: Recent | None = None
) -> tuple[Item, ...] | None:
    """The items of its conversation that the request of a response came after; None where there is
    no such conversation any more. Where the last of them is gone, or not known, they are those
    before its own, if any of these is there."""
    if record.conversation is None or record.after == "":
        return ()
    page = await store.list_items(record.tenant, record.conversation, room=room)
    if page is None:
        return None
    items = page.items
    there = {item.id: place for place, item in enumerate(items)}
    end = there.get(record.after)
    if end is None:
        ids = {item.id for item in record.items}
        own = [there[id] for id in ids if id in there]
        first = max(own, default=0) - len(ids)  # others before had some of these ids
        end = min([place for place in own if place > first], default=len(items)) - 1
        # Its id was taken, so that it got another.
        while end >= 0 and (items[end].id or "").rpartition("_")[0] in ids:
            end -= 1
    return await _resolved(items[: end + 1], store, record.tenant, recent or {}, room)


async def _history(
    store: Store,
    tenant: str,
    earlier: Sequence[Item],
    records: Sequence[Record],
    recent: Recent,
    room: Room,
) -> tuple[tuple[Item, ...], list[tuple[str, int]]]:
    """The items before a chain of responses and in it, in order; and how many of them in a row are
    the input of which response ("" for others)."""
    items, whose = [*earlier], [("", len(earlier))]
    for record in records:
        asked = await _resolved(record.request.items, store, tenant, recent, room)
        output = record.response.output if record.response is not None else ()
        items += (*asked, *output)
        whose += [(record.id, len(asked)), ("", len(output))]
    return tuple(items), whose


async def without_references(
    items: tuple[Item, ...], field: str, store: Store, tenant: str, room: Room
) -> tuple[Item, ...]:
    """The items of a field, with references replaced by what they name. Raises FaultError."""
    if REFERRING.isdisjoint(map(type, items)):
        return items
    return inlined(items, await _resolved(items, store, tenant, {}, room, field))


def inlined(items: Sequence[Item], whole: Sequence[Item]) -> tuple[Item, ...]:
    """The items, with references replaced by what they name, which is in `whole`: it ends with
    these items, resolved. What is stored so does not change when what it names is deleted."""
    own = zip(items, whole[len(whole) - len(items) :], strict=True)
    return tuple([found if isinstance(item, ItemReference) else item for item, found in own])


async def _resolved(
    items: Sequence[Item],
    store: Store,
    tenant: str,
    recent: Recent,
    room: Room,
    field: str = "input",
) -> tuple[Item, ...]:
    """The items, with references resolved, and with calls that this server ran replaced by the
    stored ones, which have more fields than those that clients send back."""
    if REFERRING.isdisjoint(map(type, items)) and Unknown not in map(type, items):
        return tuple(items)
    ran = {item.id or "" for item in items if isinstance(item, Unknown) and _was_ran(item)}
    names = {item.id for item in items if isinstance(item, ItemReference)} | ran
    if not names:
        return tuple(items)
    records, seen = recent.values(), room.seen
    near = {item.id: item for record in reversed(records) for item in record.items}
    own = {i.id: i for i in items if not isinstance(i, ItemReference) and i.id not in ran}
    near |= own
    near |= await store.find_items(tenant, names - near.keys(), room)
    meant = {name: near[name] for name in names & near.keys()}
    size = room.seen - seen + sum([record.size for record in records])
    size += 0 if own.keys().isdisjoint(names) else APART + 1  # their size is not known
    sizes = await store.apart(size, lambda: {name: size_of(meant[name]) for name in meant})
    found: list[Item] = []
    for place, item in enumerate(items):
        if isinstance(item, ItemReference) or (item.id in ran and item.id in meant):
            if item.id not in meant:
                problem = f"There is no item {quoted(item.id or '')}"
                raise FaultError(Fault("not_found", problem, "client", f"{field}[{place}].id"))
            try:
                room.read(sizes[item.id])
            except TooMuchError:
                raise too_much(f"{field}[{place}].id", room) from None
            found.append(meant[item.id])
        else:
            found.append(item)
    return tuple(found)


def _was_ran(item: Unknown) -> bool:
    """Whether an item is a call that a server ran, without the record that clients do not get."""
    known = item.extra is not None and RECORD in item.extra
    return item.kind in RAN and bool(item.id) and not known


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
    """The fault for an unknown conversation."""
    return Fault(
        "not_found", f"There is no conversation {quoted(id)}, or no longer.", "client", param
    )


TOO_MANY_CALLS = "that of the earliest calls was not looked for, as their arguments are too long"
TOO_LARGE_ANSWERS = (
    "that of earlier calls was not looked for, as the answers that made them are larger than a "
    "request may be (body_limit)"
)
COSTLY = 8
"""The cost of parsing and writing arguments, relative to unpacking their bytes."""
PER_CALL = 40
"""The cost of a call, in characters of arguments."""


async def recalled(
    asked: Asked, store: Store, tenant: str, room: Room
) -> tuple[Request, tuple[Loss, ...]]:
    """The whole request with the reasoning that is missing in it, and the losses: reasoning that
    another model encrypted, or that there is no room for. The same request, where nothing is to be
    added."""
    whole = asked.whole
    # The reasoning of a chain is in it; only its origin may matter.
    answers = [answer for answer in asked.answers if answer.model != whole.model]
    near = {id(item) for answer in asked.answers for item in answer.response.output}
    calls = [item for item in whole.items if isinstance(item, _CALLS) and id(item) not in near]
    found, forgone = latest(calls), tuple[Loss, ...]()
    if len(found) < len(calls):
        forgone = (Loss("reasoning", "dropped", TOO_MANY_CALLS),)
    if found:
        size = len(whole.items) + sum([PER_CALL + len(call.text) for call in found])

        def digested() -> dict[str, None]:
            wanted, place, digests = set(map(id, found)), 0, dict[str, None]()
            for item in whole.items:
                if isinstance(item, _CALLS) and id(item) in wanted:
                    digests[call_digest(item, place)] = None
                place = place_behind(place, (item,))
            return digests

        digests = await store.apart(COSTLY * size, digested)
        try:
            answers += await store.find_answers(tenant, tuple(digests), room)
        except TooMuchError:
            forgone = (Loss("reasoning", "dropped", TOO_LARGE_ANSWERS),)
        except StoreError:  # an answer without earlier reasoning is better than none
            pass
    if not answers:
        return whole, forgone

    def restored() -> tuple[tuple[Item, ...], tuple[Loss, ...]]:
        cache = ReasoningCache()
        for answer in answers:
            for choice in sorted(set(answer.response.choices)) or (0,):
                cache.store(tenant, answer.model, answer.response.choice(choice), answer.place)
        return cache.restore(tenant, whole.model, whole.items)

    items, losses = await store.apart(room.most - room.left + asked.size, restored)
    return (whole if items is whole.items else replace(whole, items=items)), forgone + losses
