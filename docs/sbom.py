"""Writes the bill of materials of what is installed, as CycloneDX: `python -m docs.sbom EXTRA…`.

It names Dragoman and all that it needs at run time, with the extras that are given; `make release`
puts it beside the wheel. The same packages give the same bytes.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(name: str = "dragoman", extras: tuple[str, ...] = ()) -> dict[str, Distribution]:
    """Name -> distribution of everything that `name` needs at run time here, itself included."""
    found: dict[str, Distribution] = {}
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        current, wanted = waiting.pop()
        package = found.setdefault(current, distribution(current))
        for need in _needs(package, wanted):
            if (key := canonicalize_name(need.name)) not in found or need.extras:
                waiting.append((key, tuple(need.extras)))
    return found


def licence(package: Distribution) -> str:
    """The licence in a package's own words: the SPDX expression, or the older free text."""
    expression = package.metadata.get("License-Expression") or package.metadata.get("License", "")
    return expression.removesuffix(" License")


def bill(extras: tuple[str, ...] = ()) -> dict[str, Any]:
    """The bill of materials, CycloneDX 1.6."""
    packages = needed(extras=extras)
    parts = {name: _component(name, package) for name, package in sorted(packages.items())}
    edges = []
    for name, package in sorted(packages.items()):
        needs = _needs(package, extras if name == "dragoman" else ())
        refs = {parts[key]["bom-ref"] for each in needs if (key := _key(each)) in parts}
        edges.append({"ref": parts[name]["bom-ref"], "dependsOn": sorted(refs)})
    own = parts.pop("dragoman")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": list(parts.values()),
        "dependencies": edges,
    }


def _key(need: Requirement) -> str:
    return canonicalize_name(need.name)


def _needs(package: Distribution, extras: tuple[str, ...]) -> list[Requirement]:
    """What a package needs on this system, with those of its extras."""
    found = []
    for need in map(Requirement, package.requires or []):
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
            found.append(need)
    return found


def _component(name: str, package: Distribution) -> dict[str, Any]:
    url = f"pkg:pypi/{name}@{package.version}"
    part = {"type": "library", "bom-ref": url, "name": name, "version": package.version}
    terms = licence(package)
    if "License-Expression" in package.metadata:
        return {**part, "licenses": [{"expression": terms}], "purl": url}
    if terms and len(terms) < 100:  # and not the text of a licence
        return {**part, "licenses": [{"license": {"name": terms}}], "purl": url}
    return {**part, "purl": url}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill(tuple(sys.argv[1:])), indent=2) + "\n")
