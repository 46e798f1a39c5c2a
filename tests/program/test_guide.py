"""The programs of the guide run unchanged on a real llama.cpp server."""

import re

from tests.architecture.tree import ROOT

GUIDE = (ROOT / "docs/guide/programs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


GUIDANCE = """
    Tool assistant at_most_n_repeats audio block capture chat exactly_n_repeats gbnf_to_lark gen
    gen_audio gen_image gen_video guidance image json lark library metrics models one_or_more
    optional regex role select sequence special_token string substring system token_limit trace
    user video visual with_temperature zero_or_more
    LlamaCpp Mock OnnxRuntimeGenAI OpenAI Transformers create_azure_aifoundry_model
    create_azure_openai_model experimental LiteLLM SglangModel VLLMModel
    copy get log_prob remove set stream with_sampling_params with_step_config
    from_callable from_grammar from_lark from_regex to_openai_style with_name
    max_tokens list_append tools hide_tool_call stop stop_regex suffix temperature top_p
    save_stop_text tool_choice schema separators whitespace_flexible whitespace_pattern lenient
"""
"""The public names of guidance 0.3.1, and what its models, `Tool`, `gen` and `json` take."""


def test_the_table_says_where_every_name_of_guidance_went() -> None:
    table = GUIDE.partition("## For those who know guidance")[2]
    words = set(re.findall(r"\w+", table))
    assert not [name for name in GUIDANCE.split() if name not in words]


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
