"""The import contracts of pyproject.toml hold, and are about the package that is installed.

import-linter reads the import graph itself, imports inside functions and under TYPE_CHECKING
included; this only runs it, so that a broken wall shows in any test run. It runs on its own, as it
would silence the loggers of this process.
"""

import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import PACKAGE, ROOT


def test_the_import_contracts_hold() -> None:
    import dragoman

    assert dragoman.__file__ == str(PACKAGE / "__init__.py"), "another dragoman is installed"
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
