"""The run-time dependencies are few, and the decision that lists them tells the truth.

Licences are those of the installed packages' metadata. What is declared for tests only is free.
"""

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.sbom import bill, licence, needed
from tests.architecture.tree import ROOT, sources
from tests.floors import versions

DECISION = ROOT / "docs" / "decisions" / "0002-dependencies.md"
PACKAGES = 12


def test_an_install_brings_no_more_packages_than_are_decided() -> None:
    assert len(needed()) <= PACKAGES


def test_the_decision_lists_each_dependency_with_its_licence() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \| \S", DECISION.read_text(), re.M)
    listed = {name: terms for name, terms in rows if name != "package"}
    installed = {name: licence(package) for name, package in needed().items()}
    del installed["dragoman"]
    assert listed == installed


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE = ("encryption", "local", "postgres")
"""The extras of the image."""
NEEDS = {need.name: need for need in map(Requirement, PROJECT["dependencies"])}
PINNED = re.compile(r"^([\w.-]+)==([\w.]+)(?: ;.*)? \\$", re.M)


def test_each_dependency_has_a_floor_that_can_be_installed() -> None:
    """8.03. `make floors` runs the product on them."""
    floors = [Requirement(line) for line in versions()]
    assert {floor.name for floor in floors} == set(NEEDS)
    for floor in floors:
        (version,) = floor.specifier
        assert version.operator == "=="
        assert version.version in NEEDS[floor.name].specifier
        assert needed()[canonicalize_name(floor.name)].version in NEEDS[floor.name].specifier


def test_what_is_run_on_the_floors_holds_here() -> None:
    """8.03. The program of `make floors`, on what is installed."""
    command = [sys.executable, "-m", "tests.floors"]
    subprocess.run(command, check=True, timeout=100, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_packages_whose_insides_are_used_have_a_ceiling() -> None:
    """8.04. What is no part of their interface changes without notice."""
    inside = {"websockets"}  # its reader is asked whether a message is incomplete
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn."):
                inside.add("uvicorn")
    for name in inside:
        assert "<" in str(NEEDS[name].specifier), name


def locked(name: str) -> dict[str, set[str]]:
    """Package -> its versions in a lock, each of which has hashes."""
    text = (ROOT / "docs" / "deploy" / name).read_text()
    found: dict[str, set[str]] = {}
    for match in PINNED.finditer(text):
        assert text[match.end() + 1 :].startswith("    --hash=sha256:"), match[1]
        found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    assert len(found) == len({line.split("==")[0] for line in text.splitlines() if line[0] != " "})
    return found


def test_the_image_installs_what_is_locked_by_hash() -> None:
    """8.01. All that is declared is in the lock, at versions that are declared."""
    pinned = locked("requirements.lock")
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *chain(*(extras[name] for name in IMAGE))):
        need = Requirement(text)
        assert all(version in need.specifier for version in pinned[canonicalize_name(need.name)])
    assert set(needed(extras=IMAGE)) - {"dragoman"} <= set(pinned)
    assert "hatchling" in locked("build.lock")


def test_the_bill_of_materials_names_all_that_is_installed() -> None:
    """8.02."""
    found = bill(IMAGE)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in found["components"]}
    packages = needed(extras=IMAGE)
    assert {"dragoman", *parts} == set(packages)
    for name, part in parts.items():
        assert part["version"] == packages[name].version
        assert part["purl"] == part["bom-ref"] == f"pkg:pypi/{name}@{part['version']}"
    refs = {part["bom-ref"] for part in (*parts.values(), found["metadata"]["component"])}
    assert {edge["ref"] for edge in found["dependencies"]} == refs
    for edge in found["dependencies"]:
        assert set(edge["dependsOn"]) <= refs
    own = next(edge for edge in found["dependencies"] if "/dragoman@" in edge["ref"])
    assert {ref.split("/")[1].split("@")[0] for ref in own["dependsOn"]} >= set(NEEDS)


KEPT_OUT = [".git/config", ".venv/bin/python", "dragoman.toml", ".env", "keys/client.key", "a.db"]
KEPT_OUT += ["docs/deploy/dragoman.toml", "src/dragoman/__pycache__/a.pyc", "tests/product.py"]
TAKEN = ["pyproject.toml", "README.md", "LICENSE", "NOTICE", "src/dragoman/cli/main.py"]
TAKEN += ["src/dragoman/engines/pocket/SHA256SUMS", "docs/deploy/requirements.lock"]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build: the last pattern that fits it, or a
    folder above it, decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        escaped = re.escape(line.removeprefix("!"))
        expression = escaped.replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{expression}(/.*)?", path):
            result = not line.startswith("!")
    return result


@pytest.mark.parametrize("path", KEPT_OUT + TAKEN)
def test_the_build_sees_no_keys_and_no_history(path) -> None:
    """8.05. `COPY . /source` makes a layer that nothing removes."""
    assert ignored(path) is (path in KEPT_OUT)
