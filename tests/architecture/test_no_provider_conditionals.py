"""No decision is taken on the name of a provider, a model family or a product.

What differs between servers is a value in a profile; code that compares a name is a profile in
the wrong room. Tables of names (dicts, calls that build a profile) are data and free.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import sources

NAMES = {
    *("anthropic", "azure", "bedrock", "cerebras", "cohere", "deepseek", "fireworks", "google"),
    *("groq", "huggingface", "jan", "litellm", "llama.cpp", "llama-cpp", "llamacpp", "lm studio"),
    *("lm-studio", "lmstudio", "localai", "mistral", "nvidia", "ogx", "ollama", "openai"),
    *("openrouter", "sglang", "tgi", "together", "vertex", "vllm", "xai"),
    *("claude", "codex", "gemini", "gemma", "gpt", "gpt-4", "gpt-4o", "gpt-5", "gpt-oss", "kimi"),
    *("llama", "o1", "o3", "o4", "phi", "qwen"),
}
MATCHING = {"startswith", "endswith", "find", "index", "count", "removeprefix", "fullmatch"}


def names_in(node: ast.AST | None) -> set[str]:
    """The provider names among the literals of an expression, bytes and tuples included."""
    literals = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    texts = (v.decode("latin-1") if isinstance(v, bytes) else v for v in literals)
    return {text for text in texts if isinstance(text, str) and text.lower().strip("-_ ") in NAMES}


def conditionals(tree: ast.Module) -> Iterator[tuple[ast.AST, set[str]]]:
    """Every comparison, match pattern and string test of `tree`, with the names it tests for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            yield node, names_in(node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MATCHING
        ):
            yield node, set().union(*map(names_in, node.args))


def test_no_decision_on_a_providers_name() -> None:
    found = [
        f"{source.name}:{node.lineno} tests for {', '.join(sorted(names))}"
        for source in sources()
        for node, names in conditionals(source.tree)
        if names
    ]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        'if provider == "openai": pass',
        'x = 1 if "ollama" in name else 2',
        'match owner:\n    case "vllm" | "sglang": pass',
        'flag = model.startswith(("gpt-", "o1"))',
        'while server.lower() != b"llama.cpp": pass',
    ],
)
def test_the_rule_sees_such_a_decision(code) -> None:
    assert any(names for _, names in conditionals(ast.parse(code)))


def test_the_rule_leaves_tables_alone() -> None:
    table = 'PROFILES = {"ollama": Profile("ollama", owned_by="library")}\nPROFILES["openai"]'
    assert not any(names for _, names in conditionals(ast.parse(table)))
