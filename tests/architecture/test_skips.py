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
from tests.conftest import read_skips
from tests.product import SOURCE

SAMPLES = {
    "sample": """
import pytest

def test_runs(): pass

@pytest.mark.parametrize("case", [1, 2])
def test_skips(case): pytest.skip("not here")
""",
    "module": 'import pytest\npytest.skip("all of it", allow_module_level=True)\n',
    "failing": "import pytest\n\n@pytest.mark.xfail\ndef test_fails(): assert False\n",
}
LISTED = "".join(
    f'[[skip]]\ntest = "tests/test_{test}"\nreason = "a sample"\n'
    for test in ("sample.py::test_skips", "module.py", "failing.py::test_fails")
)


def run_sample(folder: Path, skips: str, *options: str) -> subprocess.CompletedProcess[str]:
    tests = folder / "tests"
    tests.mkdir()
    for name in ("conftest.py", "samples.py", "steady.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    for name, text in SAMPLES.items():
        (tests / f"test_{name}.py").write_text(text)
    (tests / "skips.toml").write_text(skips)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{SOURCE['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_unlisted_skips_and_expected_failures_fail_the_session(tmp_path, options) -> None:
    outcome = run_sample(tmp_path, "", *options)
    assert outcome.returncode == pytest.ExitCode.TESTS_FAILED, outcome.stdout
    for test in ("sample.py::test_skips[1]", "module.py", "failing.py::test_fails"):
        assert f"not listed in tests/skips.toml: tests/test_{test}" in outcome.stdout


def test_listed_skips_are_allowed(tmp_path) -> None:
    outcome = run_sample(tmp_path, LISTED)
    assert outcome.returncode == pytest.ExitCode.OK, outcome.stdout


def test_the_list_is_short_and_gives_reasons(tmp_path) -> None:
    path = tmp_path / "skips.toml"
    for text, problem in (
        (LISTED * 3, "at most 8"),
        (LISTED.replace("a sample", " "), r"gives no reason for tests/test_sample\.py::test_skips"),
    ):
        path.write_text(text)
        with pytest.raises(pytest.UsageError, match=problem):
            read_skips(path)
