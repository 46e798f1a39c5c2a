"""Limits: how large, how many, how long, and what those hear who are over one."""

import asyncio
import json

import pytest

from dragoman.core.error import FaultError
from dragoman.server.app import App
from dragoman.server.limits import Gate
from dragoman.server.settings import Settings
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing


def holding(gate: asyncio.Event) -> Stub:
    return Stub(*OPENING, gate, *closing(""))


# ---- the body ------------------------------------------------------------------------------


async def test_a_body_over_the_limit_is_refused_by_its_length_alone(wire: str) -> None:
    call = Call(
        App(Stub(), Settings(body_limit=1000)),
        PATHS[wire],
        asking(wire),
        headers={"content-length": "1001"},
    )
    call.unread()
    await asyncio.wait_for(call(), 5)
    assert call.status == 413
    assert call.code == "request_too_large"
    assert "1000" in call.json["error"]["message"]


async def test_a_body_without_a_length_is_read_to_the_limit_and_no_further(wire: str) -> None:
    call = Call(App(Stub(), Settings(body_limit=1000)), PATHS[wire])
    call.unread()
    for _ in range(11):
        call.arrive(b" " * 100)
    await asyncio.wait_for(call(), 5)
    assert call.status == 413


async def test_a_length_that_no_number_can_hold_is_too_large() -> None:
    call = Call(App(Stub(), Settings()), headers={"content-length": "9" * 5000})
    assert (await call()).status == 413


async def test_a_body_in_pieces_is_one_body(wire: str) -> None:
    data = json.dumps(asking(wire)).encode()
    call = Call(App(Stub(), Settings(body_limit=len(data))), PATHS[wire])
    call.unread()
    for number in range(len(data)):
        call.arrive(data[number : number + 1])
    call.arrive(b"", more=False)
    await call()
    assert call.status == 200


async def test_a_body_that_stops_coming_is_not_waited_for(wire: str) -> None:
    call = Call(App(Stub(), Settings(read_time=0.01)), PATHS[wire])
    call.unread()
    call.arrive(b"{")
    await asyncio.wait_for(call(), 5)
    assert call.status == 408


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON ;charset=latin-1"}, 200),
        # What a web page could send without being asked first is refused.
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "text/plain; charset=application/json"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=application/json"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "br"}, 415),
    ],
)
async def test_only_plain_json_is_accepted(wire: str, headers, status) -> None:
    stub = Stub()
    call = await Call(App(stub, Settings()), PATHS[wire], asking(wire), headers=headers)()
    assert call.status == status
    assert bool(stub.asked) is (status == 200)
    codes = {"messages": "invalid_request_error"}
    assert status == 200 or call.code == codes.get(wire, "unsupported_media_type")


# ---- how many ------------------------------------------------------------------------------


async def test_requests_over_the_concurrency_wait(wire: str) -> None:
    gate = asyncio.Event()
    stub = holding(gate)
    app = App(stub, Settings(concurrency=2, queue=1))
    calls = [Call(app, PATHS[wire], asking(wire, stream=True)) for _ in range(3)]
    tasks = [asyncio.create_task(call()) for call in calls]
    while len(stub.asked) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(stub.asked) == 2
    gate.set()
    await asyncio.gather(*tasks)
    assert [call.status for call in calls] == [200, 200, 200]


async def test_full_queue_is_429_with_retry_after(wire: str) -> None:
    gate = asyncio.Event()
    stub = holding(gate)
    app = App(stub, Settings(concurrency=1, queue=1))
    tasks = [asyncio.create_task(Call(app, PATHS[wire], asking(wire))()) for _ in range(2)]
    await stub.begun.wait()
    await asyncio.sleep(0)
    call = await Call(app, PATHS[wire], asking(wire))()
    assert call.status == 429
    assert call.code == {"messages": "rate_limit_error"}.get(wire, "rate_limit_exceeded")
    assert float(call.headers["retry-after"]) > 0
    gate.set()
    assert [(await task).status for task in tasks] == [200, 200]


async def test_queue_timeout_is_overloaded_with_retry_after(wire: str) -> None:
    gate = asyncio.Event()
    stub = holding(gate)
    app = App(stub, Settings(concurrency=1, queue=9, queue_time=0.01))
    first = asyncio.create_task(Call(app, PATHS[wire], asking(wire))())
    await stub.begun.wait()
    call = await Call(app, PATHS[wire], asking(wire, stream=True))()
    overloaded = {"messages": (529, "overloaded_error")}.get(wire, (503, "overloaded"))
    assert (call.status, call.code) == overloaded
    assert call.headers["retry-after"]
    gate.set()
    await first


async def test_disconnect_while_queued_frees_the_place(wire: str) -> None:
    gate = asyncio.Event()
    stub = holding(gate)
    app = App(stub, Settings(concurrency=1))
    first = asyncio.create_task(Call(app, PATHS[wire], asking(wire))())
    await stub.begun.wait()
    waiting = Call(app, PATHS[wire], asking(wire))
    task = asyncio.create_task(waiting())
    await asyncio.sleep(0.01)
    waiting.hang_up()
    await asyncio.wait_for(task, 5)
    gate.set()
    await first
    assert len(stub.asked) == 1
    assert not waiting.sent
    assert (await Call(app, PATHS[wire], asking(wire))()).status == 200  # the place is free


async def test_turns_are_taken_in_order() -> None:
    gate = Gate(1, 10, 5)
    order: list[int] = []

    async def enter(number: int) -> None:
        async with gate.place(""):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(enter(number) for number in range(10)))
    assert order == list(range(10))


@pytest.mark.parametrize("moment", ["before", "at", "after"])
async def test_cancelled_waiter_gives_its_turn_back(moment) -> None:
    gate = Gate(1, 10, 5)
    await gate.enter("")
    task = asyncio.create_task(gate.enter(""))
    await asyncio.sleep(0)
    if moment == "at":
        gate.leave("")
        task.cancel()
    elif moment == "before":
        task.cancel()
        gate.leave("")
    else:
        task.cancel()
        await asyncio.wait([task])
        gate.leave("")
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(gate.enter(""), 1)
    with pytest.raises(FaultError, match="no turn"):
        await Gate(0, 1, 0.001).enter("")


async def test_a_failed_answer_gives_its_place_back(wire: str) -> None:
    app = App(Stub(*OPENING[:1]), Settings(concurrency=1, queue=0))
    for _ in range(3):
        assert (await Call(app, PATHS[wire], asking(wire))()).status == 502
