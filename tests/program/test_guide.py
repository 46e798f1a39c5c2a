"""The programs of the guide run unchanged on a real llama.cpp server."""

import re

from tests.architecture.tree import ROOT

GUIDE = (ROOT / "docs/guide/programs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_programs_of_the_guide_run_on_llamacpp(llamacpp, capsys) -> None:
    """The tiny model knows nothing of what they ask: what it is bound to holds all the same."""
    names: dict[str, object] = {"__name__": "guide"}
    for block in BLOCKS:
        there = f'Model("{llamacpp.base_url}", max_tokens=40, '
        exec(block.replace('Model("pocket", ', there), names)
    printed = capsys.readouterr().out.splitlines()
    assert names["chat"]["how"] in ("Easy", "Hard")
    assert names["few"].guarantee("mood") == "enforced"
    assert 1800 <= int(names["born"]["year"]) < 1900
    assert len(names["colours"]["colours"]) == 3
    assert len(BLOCKS) > 10
    assert len(printed) > 10
