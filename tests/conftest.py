"""What every session shares: the sample sizes, and the account of skipped tests.

A skipped test is a promise not kept, so a session fails when a test skips (or is expected to
fail) that is not listed with its reason in `tests/skips.toml`, which holds eight at most. The
account is kept where reports arrive, hence also under xdist. Fixtures live beside their tests, but
for the one server that is shared because it is slow to start, and the patience that all need.
"""

import gc
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import dragoman

try:
    import fcntl
except ImportError:  # on Windows each compiles for itself
    fcntl = None

from tests.samples import FULL, load_profile
from tests.steady import LOOPS

MAX_SKIPS = 8
UNCOUNTED = {"chaos", "oracles", "compliance", "sdk", "docs", "architecture", "test_laws.py"}
"""Folders and files that coverage does not count; a test elsewhere says it with a mark."""


def pytest_configure(config: pytest.Config) -> None:
    load_profile()
    config.addinivalue_line("markers", "uncounted: a long test, which coverage does not count")
    account = SkipAccount(read_skips(Path(__file__).with_name("skips.toml")))
    config.pluginmanager.register(account, "dragoman-skip-account")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are processors: half of what tests take is waiting."""
    return 2 * (os.cpu_count() or 1)


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return LOOPS


@pytest.fixture(scope="session", autouse=True)
def patience(tmp_path_factory) -> Iterator[None]:
    """Silence is long here: a machine may stop for seconds. Tests of silence have a shorter one.
    The store of whoever runs the tests is none of theirs."""
    from dragoman.engines import discover, router, upstream

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        for module in (discover, router, upstream):
            patched.setattr(module, "PATIENCE", 60.0)
        patched.setattr(upstream.question, "__defaults__", (None, 60.0))
        yield


@pytest.fixture
def capsys(capsys) -> pytest.CaptureFixture[str]:
    """Pytest's. The log is written by a thread, which has finished when it is read."""
    from dragoman.server.log import LINES

    read = capsys.readouterr

    def readouterr() -> object:
        LINES.wait(60)
        return read()

    capsys.readouterr = readouterr
    return capsys


@pytest.fixture(scope="session")
def postgres() -> Iterator[object]:
    """A PostgreSQL server, started when a test first needs it. A machine that does much else may
    leave it waiting, so it may take as long to take a connection as to start."""
    from dragoman.stores.postgres import PostgresStore
    from tests.postgres import PATIENCE, running

    with running() as server, pytest.MonkeyPatch.context() as patched:
        patched.setitem(PostgresStore.__init__.__kwdefaults__, "patience", PATIENCE)
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What collection makes, ten thousand tests, is there to stay: the garbage collector need not
    look at it again and again, which takes as long as all else here, and not afterwards either.
    Nor need coverage, which takes twice as long as all else: it counts how our modules are
    imported, all but the one that brings an SDK of a second, and then what `counted` lets it."""
    with after_the_first(session.config):
        if controller := coverage_of(session.config):
            # The controller of xdist runs no test.
            here = not session.config.pluginmanager.hasplugin("dsession")
            for module in walk_packages(dragoman.__path__, "dragoman.") if here else ():
                if not module.name.endswith(("__main__", "tools.mcp_client")):
                    import_module(module.name)
            controller.pause()
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()


@contextmanager
def after_the_first(config: pytest.Config) -> Iterator[None]:
    """The first of xdist's workers alone, then the others: they read what it compiled."""
    if fcntl is None or not hasattr(config, "workerinput"):
        yield
        return
    with Path(config.option.basetemp).with_name("collected").open("a") as done:
        fcntl.flock(done, fcntl.LOCK_EX)
        if os.fstat(done.fileno()).st_size:
            fcntl.flock(done, fcntl.LOCK_UN)
        yield
        done.write("another\n")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    with counted(pyfuncitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    if not fixturedef.baseid:  # of pytest or of a plugin
        return (yield)
    with counted(request.node):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with counted(item):
        return (yield)


@contextmanager
def counted(node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """Coverage counts the examples that somebody wrote down: what is drawn may be other lines next
    time, and who asks a whole server says little of a line. As counting takes as long again as what
    is counted, tests are counted, and pytest is not."""
    controller = coverage_of(node.config)
    uncounted = (
        UNCOUNTED & {*node.nodeid.partition("::")[0].split("/")}
        or getattr(getattr(node, "obj", None), "is_hypothesis_test", False)
        or node.get_closest_marker("uncounted")
    )
    if not controller or controller.started or uncounted:
        yield
        return
    # What the controller has for this changes the folder as well, twice.
    controller.cov.start()
    controller.started = True
    try:
        yield
    finally:
        controller.cov.stop()
        controller.started = False


def coverage_of(config: pytest.Config) -> Any:
    """What starts and stops coverage, where `--cov` asked for it."""
    plugin = config.pluginmanager.getplugin("_cov")
    return plugin and plugin.cov_controller


def pytest_report_header() -> str:
    return f"dragoman: {'full' if FULL else 'moderate'} sample sizes"


def read_skips(path: Path) -> set[str]:
    """Return the tests that may skip; raise UsageError for a seventh, or one without a reason."""
    entries = tomllib.loads(path.read_text()).get("skip", [])
    if len(entries) > MAX_SKIPS:
        raise pytest.UsageError(f"{path.name} lists {len(entries)} tests, at most {MAX_SKIPS}")
    if unexplained := [entry["test"] for entry in entries if not entry.get("reason", "").strip()]:
        raise pytest.UsageError(f"{path.name} gives no reason for {', '.join(unexplained)}")
    return {entry["test"] for entry in entries}


class SkipAccount:
    """Notes unlisted skips where all reports pass: in the session, or in xdist's controller."""

    def __init__(self, listed: set[str]) -> None:
        self.listed = listed
        self.unlisted: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and report.nodeid.split("[")[0] not in self.listed:
            self.unlisted.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in sorted(self.unlisted):
            terminalreporter.write_line(f"not listed in tests/skips.toml: {nodeid}", red=True)
