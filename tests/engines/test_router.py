"""Names to engines: routes, aliases, engines that take any name, and names nobody has."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.request import Request
from dragoman.engines import router
from dragoman.engines.router import MOST_NAMES, Route, Router
from dragoman.engines.script import Script
from tests.engines.stage import answered, heard

DOWN = FaultError(Fault("upstream_unreachable", "nobody there", "upstream"))


class Server(Script):
    """An engine that says its name and the model it was asked for, and lists some models."""

    def __init__(self, name: str, *models: str, error: Exception | None = None) -> None:
        super().__init__(lambda request: f"{name}:{request.model}", name=name)
        self._listed = models
        self._error = error
        self.asked = 0
        self.closed = 0

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return tuple(Model(model, owned_by=self.name) for model in self._listed)

    async def close(self) -> None:
        self.closed += 1
        if self._error is not None:
            raise self._error


async def told(engine: Router, model: str) -> str:
    return (await answered(engine, Request(model=model))).text


async def test_model_name_selects_its_engine() -> None:
    one, two = Server("one"), Server("two")
    routed = Router([Route(one, ("a", "b")), Route(two, ("b", "c"), {"fast": "c"})])
    assert [await told(routed, m) for m in ("a", "b", "c", "fast")] == [
        *("one:a", "one:b", "two:c", "two:c")
    ]


async def test_unknown_model_fault_lists_the_models() -> None:
    routed = Router([Route(Server("one"), tuple(f"m{n:02}" for n in range(MOST_NAMES + 5)))])
    (failed,) = await heard(routed, Request(model="nothing"))
    fault = failed.fault
    assert (fault.code, fault.param, fault.blame) == ("model_not_found", "model", "client")
    assert "'nothing'" in fault.message
    assert "m00" in fault.message
    assert fault.message.endswith("and 5 more.")
    (failed,) = await heard(Router([]), Request(model=""))
    assert failed.fault.message == "The request names no model. The models are: none."


async def test_a_request_that_names_no_model_gets_the_default() -> None:
    routed = Router([Route(Server("one"), ("a", "b"))], default="b")
    assert await told(routed, "") == "one:b"


async def test_one_engine_that_takes_any_name_gets_all_others_unasked() -> None:
    named, any_name = Server("named"), Server("any", "x")
    routed = Router([Route(named, ("a",)), Route(any_name)])
    assert [await told(routed, m) for m in ("a", "x", "never-heard-of")] == [
        *("named:a", "any:x", "any:never-heard-of")
    ]
    assert any_name.asked == 0


@pytest.mark.parametrize("error", [DOWN, ValueError("a mistake in an engine of one's own")])
async def test_of_several_the_one_that_lists_the_name_gets_it(error: Exception) -> None:
    first, down, second = Server("first", "x"), Server("down", error=error), Server("second", "y")
    routed = Router(map(Route, (first, down, second)))
    assert [await told(routed, m) for m in ("y", "x", "z", "z")] == [
        *("second:y", "first:x", "first:z", "first:z")
    ]
    assert first.asked == 1  # and again only after a while


async def test_a_new_model_is_found_after_a_while(monkeypatch) -> None:
    monkeypatch.setattr(router, "MEMORY", 0.0)
    first, second = Server("first", "x"), Server("second")
    routed = Router([Route(first), Route(second)])
    assert await told(routed, "new") == "first:new"
    second._listed = ("new",)
    assert await told(routed, "new") == "second:new"


async def test_a_model_that_has_moved_is_found_after_a_while(monkeypatch) -> None:
    first, second = Server("first", "x"), Server("second")
    routed = Router([Route(first), Route(second)])
    assert await told(routed, "x") == "first:x"
    first._listed, second._listed = (), ("x",)
    assert await told(routed, "x") == "first:x"
    monkeypatch.setattr(router, "MEMORY", 0.0)
    assert await told(routed, "x") == "first:x"  # which does not wait for the listing
    await asyncio.sleep(0.01)
    assert await told(routed, "x") == "second:x"
    await routed.close()


async def test_models_of_a_server_that_was_down_are_found_soon(monkeypatch) -> None:
    """They went to another server for half a minute, which may take any name."""
    first, starting = Server("first", "x"), Server("starting", "y", error=DOWN)
    routed = Router([Route(first), Route(starting)])
    assert [await told(routed, "y") for _ in "ab"] == ["first:y"] * 2
    assert starting.asked == 1
    starting._error = None
    monkeypatch.setattr(router, "BRIEF", 0.0)
    assert await told(routed, "y") == "first:y"  # which does not wait for the listing
    await asyncio.sleep(0.01)
    assert [await told(routed, m) for m in ("y", "z")] == ["starting:y", "first:z"]
    await asyncio.sleep(0.01)
    assert (first.asked, starting.asked) == (1, 2)  # nothing is missing any more
    await routed.close()


async def test_names_that_are_listed_no_more_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(router, "MEMORY", 0.0)
    ever, silent = Server("ever"), Server("silent", "b")
    routed = Router([Route(ever), Route(silent)])
    for number in range(5):
        ever._listed = (f"a{number}",)
        await told(routed, f"c{number}")
        silent._error = DOWN  # what it listed before still counts
    assert await told(routed, "b") == "silent:b"
    assert set(routed._listed) == {"a4", "b"}


async def test_what_another_key_is_shown_decides_nothing_for_a_caller() -> None:
    class Keyed(Server):
        passes_client_key = True

        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            if caller.tenant == "refused":
                raise DOWN
            shown = await super().models(caller)
            return shown if caller.tenant == "full" else shown[:1]

    routed = Router([Route(Server("first", "a")), Route(Keyed("second", "b", "c"))])
    for tenant in ("refused", "full", "part", "full"):
        engine, _ = await routed.route("c", Caller(tenant=tenant))
        assert (tenant == "full") <= (engine is routed._open[1])


async def test_key_whose_listing_fails_is_routed_by_those_of_others() -> None:
    class Keyed(Server):
        passes_client_key = True

        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            if caller.tenant.startswith("slow"):
                raise TimeoutError
            return await super().models(caller)

    routed = Router([Route(Keyed("first", "a")), Route(Keyed("second", "b"))])
    for tenant in ("fast", "slow", "slower"):
        engine, _ = await routed.route("b", Caller(tenant=tenant))
        assert engine is routed._open[1]


async def test_silent_engine_does_not_delay_routing(monkeypatch) -> None:
    monkeypatch.setattr(router, "PATIENCE", 0.01)

    class Silent(Server):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            await asyncio.Event().wait()
            raise AssertionError("never")

    routed = Router([Route(Silent("silent")), Route(Server("second", "y"))])
    assert await told(routed, "y") == "second:y"


def test_a_router_in_several_event_loops_looks_for_a_model() -> None:
    class Slow(Server):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            await asyncio.sleep(0.05)
            return await super().models(caller)

    routed = Router([Route(Slow("one", "a")), Route(Slow("two", "b"))])

    async def both() -> list[str]:
        return await asyncio.gather(told(routed, "b"), told(routed, "b"))

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(asyncio.run, both()) for _ in "ab"]
        assert [each.result(20) for each in answers] == [["two:b"] * 2] * 2


@pytest.mark.parametrize("cancels", [True, False])
def test_a_server_that_came_back_is_found_whatever_became_of_who_asked_it(
    cancels, monkeypatch
) -> None:
    """A loop that is stopped while engines are asked leaves that task as it is, for ever."""

    class Slow(Server):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            await asyncio.sleep(0.05)
            return await super().models(caller)

    first, starting = Server("first", "x"), Slow("starting", "y", error=DOWN)
    routed = Router([Route(first), Route(starting)])
    loops: list[asyncio.AbstractEventLoop] = []

    def ask(model: str) -> str:
        if cancels:
            return asyncio.run(told(routed, model))
        loops.append(asyncio.new_event_loop())
        return loops[-1].run_until_complete(asyncio.wait_for(told(routed, model), 20))

    def steps() -> Iterator[str]:
        yield ask("y")
        monkeypatch.setattr(router, "BRIEF", 0.0)
        yield ask("x")  # which does not wait for the listing
        starting._error = None
        yield from map(ask, "xyx")
        monkeypatch.setattr(router, "MEMORY", 0.0)
        yield ask("z")
        for loop in loops:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left or (loop.create_task(asyncio.sleep(0)),)))
            loop.close()

    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(lambda: [*steps()]).result(60)
    assert answers == ["first:y", "first:x", "first:x", "starting:y", "first:x", "first:z"]


async def test_failing_engine_is_left_out_of_the_listing() -> None:
    down = Server("down", error=DOWN)
    routed = Router(
        [
            Route(Server("one", "a", "hidden"), ("a", "unlisted")),
            Route(down, ("b",)),
            Route(down),
            Route(Server("two", "a", "c"), (), {"fast": "c", "odd": "elsewhere"}),
        ]
    )
    assert [(model.id, model.owned_by) for model in await routed.models()] == [
        ("a", "one"),
        ("unlisted", "dragoman"),
        ("b", "dragoman"),
        ("c", "two"),
        ("fast", "two"),
        ("odd", "dragoman"),
    ]


async def test_listing_without_any_engine_is_a_fault() -> None:
    with pytest.raises(FaultError, match="nobody there"):
        await Router([Route(Server("down", error=DOWN))]).models()
    assert await Router([Route(Server("empty"))]).models() == ()


async def test_capabilities_are_those_of_the_models_engine() -> None:
    routed = Router([Route(Server("one"), ("a",))])
    assert (await routed.capabilities("a")).tools is True
    assert await routed.capabilities("b") == Capabilities()
    assert (await Router([Route(Server("any"))]).capabilities("whatever")).tools is True


async def test_every_engine_is_closed_once_even_if_one_cannot() -> None:
    down, up = Server("down", error=DOWN), Server("up")
    with pytest.raises(FaultError, match="nobody there"):
        await Router([Route(down), Route(up, ("a",)), Route(up, ("b",))]).close()
    assert (down.closed, up.closed) == (1, 1)
    await Router([Route(up)]).close()
