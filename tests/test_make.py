"""The Makefile: an environment that an interrupted `make run` left behind is built again."""

import os
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
PYTHON = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/said"
[ "$2" = venv ] || exit 0
for folder; do :; done
rm -rf "$folder" && mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
"""
BROKEN = "#!/bin/sh\necho ImportError: cannot import name main from pip >&2; exit 1\n"


@pytest.mark.parametrize("left", [None, BROKEN, PYTHON], ids=["nothing", "broken", "whole"])
def test_make_run_recovers_from_an_interrupted_pip(left, tmp_path: Path) -> None:
    def executable(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def make() -> list[str]:
        said.write_text("")
        words = [f"VENV={venv}", f"PYTHON={python}", f"{venv}/run.stamp"]
        command = ["make", "-f", MAKEFILE, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=alone)
        assert (done.returncode, "ImportError" in done.stderr) == (0, False), done.stderr
        return said.read_text().splitlines()

    # The tests may be run by another make, which passes its options on.
    alone = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    (tmp_path / "pyproject.toml").touch()
    venv, said = tmp_path / "venv", tmp_path / "said"
    python = executable(tmp_path / "python3", PYTHON)
    if left:
        executable(venv / "bin" / "python", left)
    built = [f"-m venv --clear {venv}"]
    assert make() == ([] if left == PYTHON else built)
    assert (venv / "pip.stamp").exists()
    (venv / "run.stamp").unlink()
    assert make() == []  # pip has worked once
    assert (venv / "run.stamp").exists()
