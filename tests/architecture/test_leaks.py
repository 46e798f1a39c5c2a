"""What is published holds no secret and no trace of a machine; the wheel holds only the package.

Vendored specifications under tests/data are others' texts and are not searched.
"""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGE, ROOT, published_files

VENDORED = ROOT / "tests" / "data"
MACHINE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:home|Users|root|work|workspace|farm)/[\w.]|\b[A-Z]:\\Users\\"
)
SECRET = re.compile(
    r"""\b(?:sk|rk)-(?:proj-|ant-|or-)?[A-Za-z0-9_]{20,}   # model providers
      | \bgh[pousr]_[A-Za-z0-9]{30,}                       # GitHub
      | \bhf_[A-Za-z0-9]{30,}                              # Hugging Face
      | \bAKIA[0-9A-Z]{16}\b                               # AWS
      | \bAIza[0-9A-Za-z_-]{35}                            # Google
      | \bxox[abprs]-[0-9A-Za-z-]{10,}                     # Slack
      | \beyJ[\w-]{20,}\.eyJ[\w-]{20,}\.                   # a signed token
      | -----BEGIN\ [A-Z ]*PRIVATE\ KEY""",
    re.VERBOSE,
)


def searched_texts() -> list[tuple[str, str]]:
    """Name and text of every published text file of our own."""
    texts = []
    for path in published_files():
        content = path.read_bytes()
        if not path.is_relative_to(VENDORED) and b"\0" not in content[:4096]:
            texts.append((path.relative_to(ROOT).as_posix(), content.decode(errors="replace")))
    return texts


@pytest.mark.parametrize("rule", [MACHINE_PATH, SECRET], ids=["machine path", "secret"])
def test_nothing_leaks(rule) -> None:
    found = [
        f"{name}:{number}"
        for name, text in searched_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if rule.search(line)
    ]
    assert not found


def test_this_checkout_is_not_named() -> None:
    here = str(ROOT)
    assert not [name for name, text in searched_texts() if here in text]


def test_rules_find_secrets_and_paths() -> None:
    assert MACHINE_PATH.search(" /" + "home/jane/x.py")
    assert SECRET.search("key = sk-" + "proj-" + "a1B2" * 6)
    assert not SECRET.search("task-based-and-risk-free-" + "words" * 6)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel as a user gets it, built with the build back end of pyproject.toml."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    outcome = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def test_the_wheel_holds_the_package_and_its_licence(wheel: zipfile.ZipFile) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    info = f"dragoman-{version}.dist-info"
    names = set(wheel.namelist())
    modules = {f"dragoman/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*.py")}
    strangers = {name for name in names if not name.startswith(("dragoman/", f"{info}/"))}
    assert not strangers
    assert modules <= names
    assert {
        "dragoman/py.typed",
        f"{info}/licenses/LICENSE",
        f"{info}/licenses/NOTICE",
        f"{info}/entry_points.txt",
    } <= names
    assert not [name for name in names if Path(name).suffix in {".pyc", ".so", ".pth"}]
