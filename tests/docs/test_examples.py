"""What the documentation shows is run: Python in Markdown, docstring examples, examples/*.py.

What is printed is compared, word by word, with the lines marked `#>`, or with the last comment of a
file. Nothing is mocked and nothing leaves the machine: where a page speaks to the server at the
address that a first start prints, a server stands there for the test, on a free port.
"""

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby

import pytest
from anthropic import Anthropic
from openai import OpenAI
from pytest_examples import EvalExample, find_examples

from tests.architecture.tree import PACKAGE, ROOT, sources
from tests.docs.serving import serving

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs"]
PRINTED_ADDRESS = "http://127.0.0.1:8000"
PROMPT = re.compile(r"^ *>>> ", re.M)
PRINTED = re.compile(r"^ *#> ?(.*)$", re.M)
DOCTESTED = [
    ".".join(source.path.relative_to(above).with_suffix("").parts)
    for folder, above in ((PACKAGE, PACKAGE.parent), (ROOT / "tests", ROOT))
    for source in sources(folder)
    if PROMPT.search(source.text)
]
BY_PAGE = {
    path.relative_to(ROOT).as_posix(): list(examples)
    for path, examples in groupby(find_examples(*PAGES), key=lambda example: example.path)
}
FILES = sorted((ROOT / "examples").glob("*.py"))
SAID = "Count to three.\nCount to two.\n"
"""What is typed into the example that listens, a chat."""
RUNNING = """
import io, runpy, sys
said = sys.argv.pop()
for n, path in enumerate(sys.argv[1:]):
    print(end="\\0" * bool(n))
    sys.argv = [path]
    sys.stdin = io.StringIO(said)
    runpy.run_path(path, run_name="__main__")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture
def clients() -> Iterator[list[OpenAI | Anthropic]]:
    """Clients of SDKs, which are closed in the end: the garbage collector closes their sockets in a
    later test, with a warning."""
    made: list[OpenAI | Anthropic] = []
    yield made
    for client in made:
        client.close()


@pytest.mark.filterwarnings("ignore:connect.. must be used as a:DeprecationWarning")  # by the SDK
@pytest.mark.parametrize("page", BY_PAGE)
def test_python_in_pages_prints_what_they_say(
    page, eval_example: EvalExample, request, capsys, clients
) -> None:
    """The examples of a page run one after the other, as if typed into one session."""
    known: dict[str, object] = {}
    for example in BY_PAGE[page]:
        promised = " ".join(PRINTED.findall(example.source)).split()
        if PRINTED_ADDRESS in example.source:
            address = request.getfixturevalue("server")
            example.source = example.source.replace(PRINTED_ADDRESS, address)
        try:
            defined = eval_example.run(example, module_globals=known)
        except Exception as error:
            # Its traceback, made to point into the page, is one that Python 3.11 cannot print.
            error.__traceback__ = None
            pytest.fail(f"{page}:{example.start_line}: {error!r}")
        known.update((name, value) for name, value in defined.items() if name[:2] != "__")
        clients += [value for value in defined.values() if isinstance(value, OpenAI | Anthropic)]
        assert capsys.readouterr().out.split() == promised, f"{page}:{example.start_line}"


@pytest.mark.parametrize("module", DOCTESTED)
def test_examples_in_docstrings_hold(module) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted
    assert not outcome.failed


def test_example_files() -> None:
    """Each ends well, warns of nothing, and prints what its last comment says. They run one after
    the other, as most of what each takes is importing what all of them import."""
    command = [sys.executable, "-W", "error", "-c", RUNNING, *map(str, FILES), SAID]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not outcome.returncode, outcome.stderr
    printed = outcome.stdout.split("\0")
    promised = [path.read_text().partition("it prints:\n")[2].replace("#", "") for path in FILES]
    for path, expected, output in zip(FILES, promised, printed, strict=True):
        assert output.split() == expected.split(), path.name
