"""Real chat templates: what each writes for calls of the assistant, its family's parser reads back.

They come with the source of `llama-cpp-python`, which pip fetches once into the virtual
environment: 77 MB, of which 70 small files are kept there and none here.
"""

import json
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import Setting
from dragoman.formats.markup.format import Markup
from dragoman.formats.template import Template
from tests.cases import cases
from tests.formats.markup.parsing import TOOLS, parsed
from tests.samples import FULL

SOURCE = "llama-cpp-python==0.3.36"
CACHE = Path(sys.prefix) / "share" / "chat-templates"
CASES = cases(__file__, "templates")
"""The templates, each with its family (null: none that is known), its end token, and how many calls
it writes at once."""


@cache
def templates() -> Path | None:
    """The folder of the templates; None where they cannot be fetched."""
    if CACHE.is_dir():
        return CACHE
    if not FULL:
        return None
    with TemporaryDirectory() as place:
        words = ("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", place)
        command = (sys.executable, "-m", "pip", *words, SOURCE)
        if subprocess.run(command, capture_output=True, check=False, timeout=900).returncode:
            return None
        CACHE.mkdir(parents=True)
        with tarfile.open(next(Path(place).glob("*.tar.gz"))) as archive:
            for member in archive:
                if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                    data = archive.extractfile(member)
                    assert data is not None
                    (CACHE / Path(member.name).name).write_bytes(data.read())
    return CACHE


def template(case: dict[str, object]) -> Template:
    folder = templates()
    if folder is None:
        pytest.skip("needs the chat templates of llama-cpp-python, which `make test-full` fetches")
    text = (folder / f"{case['template']}.jinja").read_text(encoding="utf-8")
    ends = {"eos_token": case["end"]} if "end" in case else {}
    return Template(text, controls=case.get("controls", ()), variables={"bos_token": "", **ends})


CALLS = (
    FunctionCall("call_1", "get_weather", '{"city": "Rome", "days": 2, "tags": ["a"]}'),
    FunctionCall("call_2", "now", "{}"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["template"])
@pytest.mark.uncounted
def test_what_a_template_writes_its_family_reads(case) -> None:
    format = template(case)
    known = case.get("family")
    assert (format.profile.name if format.recognised else None) == known
    if known is None or not case.get("calls", 2):
        return
    calls, user = CALLS[: case.get("calls", 2)], Message("user", "QQ?")
    asked = Request(model="m", items=(user,), tools=TOOLS)
    setting = Setting("2026-11-23")
    prompt = format.render(asked, setting).text
    history = Request(model="m", items=(user, *calls), tools=TOOLS)
    whole = format.render(history, setting).text
    pairs = enumerate(zip(prompt, whole, strict=False))
    start = next((place for place, (one, other) in pairs if one != other), len(prompt))
    if start < len(prompt) and (mark := whole.rfind("<", 0, start)) > whole.rfind(">", 0, start):
        start = mark  # they part in the middle of a mark
    turn = Turn("1", 0, "m", think=None)
    reader = format if start == len(prompt) else Markup(format.profile)  # else it is no answer
    parser = reader.parser(asked, turn)
    parser.write(whole[start:])
    parser.close("stop")
    said = parsed(turn.take(), parser.warnings, 0).said
    made = [(name, json.loads(text)) for name, text in said if name not in ("text", "thought")]
    assert made == [(call.name, json.loads(call.arguments)) for call in calls]
    assert not any(text.strip() for name, text in said if name in ("text", "thought"))
