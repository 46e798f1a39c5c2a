"""A lock of tenants in two event loops: limits, turns, and no place that is lost, whatever ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.net.threads import TenantLock
from tests.samples import samples

LOOPS = st.integers(0, 1)
TENANTS = st.lists(st.tuples(st.sampled_from(("", "a", "b")), LOOPS), min_size=1, max_size=5)
ANY = st.integers(0, 9)


class Party:
    """One that waits for a turn, and has it until `gate` is settled."""

    def __init__(self, tenant: str, loop: asyncio.AbstractEventLoop) -> None:
        self.tenant, self.loop, self.inside = tenant, loop, False
        self.gate: asyncio.Future[None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None

    async def run(self, lock: TenantLock, entered: list[Party]) -> None:
        with suppress(ValueError):
            async with lock.turn(self.tenant):
                self.inside = True
                entered.append(self)
                try:
                    await self.gate
                finally:
                    self.inside = False


class Turns(RuleBasedStateMachine):
    """The loops run a step at a time, so that all that may be between two steps is tried."""

    @initialize(places=st.integers(1, 3), share=st.integers(1, 2), left=st.integers(0, 1))
    def begin(self, places: int, share: int, left: int) -> None:
        self.places, self.share = places, share
        self.alone = max(share - left, 1)  # what one tenant has, once there are several
        self.lock = TenantLock(places, share, left)
        self.loops = [asyncio.new_event_loop() for _ in "ab"]
        self.parties: list[Party] = []
        self.entered: list[Party] = []
        self.passed: dict[str, Counter[str]] = {}  # who came in before a tenant that could

    @rule(tenants=TENANTS)
    def come(self, tenants: list[tuple[str, int]]) -> None:
        for tenant, number in tenants:
            party = Party(tenant, self.loops[number])
            party.task = party.loop.create_task(party.run(self.lock, self.entered))
            self.parties.append(party)

    @rule(number=LOOPS, steps=st.integers(1, 6))
    def step(self, number: int, steps: int) -> None:
        loop = self.loops[number]
        for _ in range(steps):
            loop.call_soon(loop.stop)
            loop.run_forever()

    @precondition(lambda self: self.inside())
    @rule(number=ANY, fails=st.booleans(), steps=st.integers(0, 3), cancelled=ANY)
    def leave(self, number: int, fails: bool, steps: int, cancelled: int) -> None:
        """One leaves, and perhaps the next one is cancelled, who may not know it yet."""
        party = self.inside()[number % len(self.inside())]
        if not party.gate.done():
            party.gate.set_exception(ValueError("left")) if fails else party.gate.set_result(None)
        self.step(self.loops.index(party.loop), steps)
        waiting = [each for each in self.parties if not (each.inside or each.task.done())]
        for each in waiting[cancelled : cancelled + 1]:
            each.task.cancel()
            self.passed.pop(each.tenant, None)

    @precondition(lambda self: self.parties)
    @rule(number=ANY)
    def cancel(self, number: int) -> None:
        party = self.parties[number % len(self.parties)]
        party.task.cancel()
        self.passed.pop(party.tenant, None)

    @rule()
    def settle(self) -> None:
        """Run both loops until nothing happens: then nobody waits for a place that there is."""
        for number in (0, 1, 0, 1):
            self.step(number, 8)
        self.limits()
        self.parties = [party for party in self.parties if not party.task.done()]
        held = Counter(party.tenant for party in self.inside())
        waiting = {party.tenant for party in self.parties if not party.inside}
        able = {tenant for tenant in waiting if held[tenant] < self.alone}
        assert not able or held.total() == self.places
        for tenant in [*self.passed]:
            assert tenant not in able or max(self.passed[tenant].values(), default=0) <= 1
            if tenant not in able:
                del self.passed[tenant]
        for tenant in able:
            self.passed.setdefault(tenant, Counter())

    @invariant()
    def limits(self) -> None:
        if not hasattr(self, "lock"):
            return
        for party in self.entered:
            self.passed.pop(party.tenant, None)
            for others in self.passed.values():
                others[party.tenant] += 1
        self.entered.clear()
        held = Counter(party.tenant for party in self.inside())
        assert held.total() <= self.places
        assert max(held.values(), default=0) <= self.share

    def inside(self) -> list[Party]:
        return [party for party in self.parties if party.inside]

    def teardown(self) -> None:
        """All leave, each loop in its own thread, where it sleeps until it is woken."""
        if not hasattr(self, "lock"):
            return

        async def rest(loop: asyncio.AbstractEventLoop) -> None:
            tasks = [party.task for party in self.parties if party.loop is loop]
            for party in self.parties:
                if party.loop is loop and not party.gate.done():
                    party.gate.set_result(None)
            await asyncio.gather(*tasks, return_exceptions=True)

        begun = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            ends = [
                pool.submit(loop.run_until_complete, asyncio.wait_for(rest(loop), 5))
                for loop in self.loops
            ]
            for end in ends:
                end.result()
        for loop in self.loops:
            loop.close()
        assert time.monotonic() - begun < 5
        lock = self.lock
        state = (lock._free, +lock._held, lock._lines, lock._given)
        assert state == (self.places, Counter(), {}, set())


class TestTurns(Turns.TestCase):
    settings = settings(max_examples=samples(250, 5_000), stateful_step_count=40, deadline=None)
