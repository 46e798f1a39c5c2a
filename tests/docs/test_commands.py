"""The commands and the configuration files that the documentation shows are such as we take.

Commands are parsed and not run; a file is read, and the engine it describes is put together.
"""

import re
import shlex

import pytest

from dragoman.cli.main import parse
from dragoman.server.build import assemble
from dragoman.server.config import read, with_keys
from tests.architecture.tree import ROOT

PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
}
COMMAND = re.compile(r"^(?: {4}|(?:[A-Z_]+=\S* )*)dragoman((?: .*)?)$", re.M)
TOML = re.compile(r"^```toml\n(.*?)^```", re.M | re.S)
VARIABLE = re.compile(r'"([A-Z][A-Z_]+)"')
OURS = re.compile(r"^\[server\]|^\[\[upstreams\]\]", re.M)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page) -> None:
    for line in COMMAND.findall(PAGES[page].read_text().replace("\\\n", "")):
        words = shlex.split(line, comments=True)
        if words and words != ["--help"]:
            assert parse(words).command


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_read(page) -> None:
    for text in filter(OURS.search, TOML.findall(PAGES[page].read_text())):
        environ = dict.fromkeys(VARIABLE.findall(text), "some-key")
        configuration = read(text, page)
        settings = with_keys(configuration.server, environ)
        assert assemble(configuration.upstreams, (), settings, environ)


def test_commands_and_configurations_are_found() -> None:
    texts = [page.read_text() for page in PAGES.values()]
    assert sum(len(COMMAND.findall(text)) for text in texts) > 10
    assert sum(bool(OURS.search(block)) for text in texts for block in TOML.findall(text)) > 2
