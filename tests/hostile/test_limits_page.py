"""The page of limits: defaults are those of the code, faults exist, and no setting is left out."""

import importlib
import math
import re

import pytest
from msgspec.structs import fields

from dragoman.core.session_values import SessionLimits
from dragoman.server.settings import Settings
from dragoman.voice.programs import Program
from dragoman.wire.error import TABLE
from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text()
ROWS = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.M)
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "%": 0.01}
UNITS |= {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}
DEFAULTS = {field.name: field.default for field in fields(Settings)}


@pytest.mark.parametrize(("name", "shown", "error"), ROWS)
def test_limit_is_as_the_page_says(name, shown, error) -> None:
    if "." in name:
        module, _, constant = name.rpartition(".")
        if module.endswith("SessionLimits"):
            value = getattr(SessionLimits(), constant)
        elif module.endswith("Program"):
            value = getattr(Program, constant)
        else:
            value = getattr(importlib.import_module(f"dragoman.{module}"), constant)
        if constant.lower().endswith("_ms"):
            value /= 1000
    else:
        value = DEFAULTS[name]
    number, _, unit = shown.partition(" ")
    assert value == (None if shown == "none" else float(number) * UNITS[unit])
    for code, status in re.findall(r"`(\w+)`, (\d{3})", error):
        assert TABLE[code].status == int(status)


def test_a_worker_at_all_its_limits_fits_the_manifest() -> None:
    rows = re.findall(r"^\| (\D[^|]*) \| (\d+) \|$", PAGE.partition("## The memory")[2], re.M)
    parts = {what: int(size) * 2**20 for what, size in rows}
    for what, size in parts.items():
        named = [shown.partition(" ") for name, shown, _ in ROWS if f"`{name}`" in what]
        most = math.prod(float(number) * UNITS[unit] for number, _, unit in named)
        # What is in flight is held as bytes and as values.
        assert not named or size == (2 if "`memory`" in what else 1) * most, what
    total = re.search(r"\*\*together\*\* \| \*\*(\d+)\*\*", PAGE)
    assert total is not None
    assert len(parts) == 8
    assert sum(parts.values()) == int(total[1]) * 2**20
    manifest = (ROOT / "docs" / "deploy" / "kubernetes.yaml").read_text()
    limit = re.search(r"limits: \{memory: (\d+)Gi\}", manifest)
    assert limit is not None
    assert sum(parts.values()) <= int(limit[1]) * 2**30


def test_every_bound_of_the_settings_is_on_the_page() -> None:
    """What is a number and is no limit is named here."""
    others = {"port", "workers", "heartbeat"}
    numbers = {
        name for name, default in DEFAULTS.items() if type(default) in (int, float, type(None))
    }
    named = {name for name in numbers if name.endswith("_env")}
    assert numbers - others - named <= {name for name, *_ in ROWS}
