"""openai-harmony itself, asked anew: its prompts and its reading of answers are ours."""

from __future__ import annotations

import json
import os
import random
import subprocess

from tests.architecture.tree import ROOT
from tests.formats.harmony.test_parse import heard, rendered
from tests.oracles.conftest import PYTHON, VOCABULARY

COUNT = 800


def test_prompts_and_answers_are_those_of_openai_harmony() -> None:
    seed = random.randrange(2**31)
    drawn = json.loads(
        subprocess.check_output(
            [PYTHON, "tests/formats/harmony/record_oracle.py", str(seed), str(COUNT)],
            cwd=ROOT,
            env=os.environ | {"TIKTOKEN_ENCODINGS_BASE": str(VOCABULARY), "PYTHONPATH": "src:."},
        )
    )
    assert len(drawn["prompts"]) == COUNT
    other = [case for case in drawn["prompts"] if rendered(case) != case["prompt"]]
    assert not other, (seed, other[0], rendered(other[0]))
    other = [case for case in drawn["answers"] if heard(case) != case["items"]]
    assert not other, (seed, other[0], heard(other[0]))
