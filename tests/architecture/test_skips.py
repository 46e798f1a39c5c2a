"""The account of skipped tests itself: an unlisted skip fails a session, a listed one does not.

Runs pytest on a small tree of its own with the project's conftest, alone and under xdist.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

SKIPPING = """
import pytest

def test_runs(): pass

@pytest.mark.parametrize("case", [1, 2])
def test_skips(case): pytest.skip("not here")
"""
LISTED = '[[skip]]\ntest = "tests/test_sample.py::test_skips"\nreason = "a sample"\n'


def run_sample(folder: Path, test: str, skips: str, *options: str) -> subprocess.CompletedProcess:
    tests = folder / "tests"
    tests.mkdir()
    for name in ("conftest.py", "samples.py", "steady.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    (tests / "test_sample.py").write_text(test)
    (tests / "skips.toml").write_text(skips)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_an_unlisted_skip_fails_the_session(tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = run_sample(tmp_path, SKIPPING, "", *options)
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout
    assert "not listed in tests/skips.toml: tests/test_sample.py::test_skips[1]" in outcome.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_listed_skip_is_allowed(tmp_path: Path, options: tuple[str, ...]) -> None:
    outcome = run_sample(tmp_path, SKIPPING, LISTED, *options)
    assert outcome.returncode == pytest.ExitCode.OK, outcome.stdout


def test_a_module_that_skips_itself_is_seen(tmp_path: Path) -> None:
    module = 'import pytest\npytest.skip("all of it", allow_module_level=True)\n'
    (tmp_path / "test_other.py").write_text("def test_runs(): pass\n")
    outcome = run_sample(tmp_path, module, "", "test_other.py")
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout


def test_an_expected_failure_counts_as_a_skip(tmp_path: Path) -> None:
    test = "import pytest\n\n@pytest.mark.xfail\ndef test_fails(): assert False\n"
    outcome = run_sample(tmp_path, test, "")
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout


def test_the_list_is_short_and_gives_reasons(tmp_path: Path) -> None:
    outcome = run_sample(tmp_path, SKIPPING, LISTED * 6)
    assert outcome.returncode == pytest.ExitCode.USAGE_ERROR
    assert "at most 5" in outcome.stderr
    shutil.rmtree(tmp_path / "tests")
    outcome = run_sample(tmp_path, SKIPPING, LISTED.replace("a sample", " "))
    assert outcome.returncode == pytest.ExitCode.USAGE_ERROR
    assert "gives no reason for tests/test_sample.py::test_skips" in outcome.stderr
