"""Reads the corpora: rows of input and expected result in `cases/*.json` beside their tests."""

import json
from pathlib import Path
from typing import Any


def cases(test: str, name: str) -> Any:
    """The corpus of this name beside a test, whose `__file__` is given."""
    return json.loads(Path(test).with_name("cases").joinpath(f"{name}.json").read_text())
