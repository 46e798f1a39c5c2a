"""The run-time dependencies are few, and the decision that lists them tells the truth.

Licences are those of the installed packages' metadata. What is declared for tests only is free.
"""

import re
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement

from tests.architecture.tree import ROOT

DECISION = ROOT / "docs" / "decisions" / "0002-dependencies.md"
PACKAGES = 12


def required(name: str = "dragoman") -> dict[str, Distribution]:
    """Name -> distribution of everything that `name` needs at run time here, itself included."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop().lower()
        if current not in found:
            found[current] = distribution(current)
            needs = map(Requirement, found[current].requires or [])
            waiting += [n.name for n in needs if not n.marker or n.marker.evaluate({"extra": ""})]
    return found


def licence(package: Distribution) -> str:
    """The licence in a package's own words: the SPDX expression, or the older free text."""
    expression = package.metadata["License-Expression"] or package.metadata["License"]
    return expression.removesuffix(" License")


def test_an_install_brings_no_more_packages_than_are_decided() -> None:
    assert len(required()) <= PACKAGES


def test_the_decision_lists_each_dependency_with_its_licence() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \| \S", DECISION.read_text(), re.M)
    listed = {name: terms for name, terms in rows if name != "package"}
    installed = {name: licence(package) for name, package in required().items()}
    del installed["dragoman"]
    assert listed == installed
