"""Write a GGUF file whose model gives scripted answers to prompts of any length and content.

The tokenizer is pocket's, with its chat template. The one layer adds nothing, so a token follows
from the one before it alone. Each piece of an answer is a token of its own, which leads to the next
piece, and the last piece to the end of the turn. The template begins each answer with a marker,
which leads to its first piece: it is chosen by what the user said last, and by how many results of
tools came after that.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.engines.pocket import FOLDER
from training.pocket.gguf import gguf_file, vocabulary

CONTEXT = 65_536
WIDTH = 32
"""Of the layer that adds nothing."""
PIECE = 16
"""Characters of a token."""
CERTAIN = 100.0
"""What the logit of the next token is, nearly; all others are 0."""
NORMAL, CONTROL = 1, 3
SIGNATURE = "{{- tool.function.name + '(' + (parameters.keys() | join(', ')) + ')\\n' }}"
"""How pocket's template shows a tool. Here all of it is shown, for the sake of longer prompts."""
OPENING = "{{- '<|im_start|>assistant\\n' }}"
"""With what pocket's template begins an answer."""
CHOICE = """\
{%- set here = namespace(scene=0, results=0) %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- set here.results = here.results + 1 %}
    {%- elif message.role == 'user' %}
        {%- set here.results = 0 %}
        {%- for word in WORDS %}
            {%- if word in message.content | string %}
                {%- set here.scene = loop.index0 %}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n<|' ~ here.scene ~ '.' ~ here.results ~ '|>' }}"""


def write_model(file: Path, scenes: dict[str, Sequence[str]], context: int = CONTEXT) -> None:
    """Write the model. A scene is the answers of a turn, by a word that the user says before it."""
    fields = vocabulary(FOLDER, json.loads((FOLDER / "config.json").read_text()))
    tokens: Any = fields["tokenizer.ggml.tokens"]
    kinds: Any = fields["tokenizer.ggml.token_type"]
    end: Any = fields["tokenizer.ggml.eos_token_id"]
    ids = {token: id for id, token in enumerate(tokens)}
    follows: dict[int, int] = {}  # the token after each token of an answer
    for scene, answers in enumerate(scenes.values()):
        for number, answer in enumerate(answers):
            # From its end on, because answers with the same end share the tokens of it.
            left, after = answer, end
            while left:
                size = PIECE
                while follows.get(ids.get(_spelled(left[-size:]), -1), after) != after:
                    size += 1
                token = _spelled(left[-size:])
                follows[ids.setdefault(token, len(ids))] = after
                left, after = left[:-size], ids[token]
            marker = f"<|{scene}.{number}|>"
            follows[ids.setdefault(marker, len(ids))] = after
    kinds += [CONTROL if token.startswith("<|") else NORMAL for token in list(ids)[len(tokens) :]]
    fields["tokenizer.ggml.tokens"] = tokens = list(ids)
    template: Any = fields["tokenizer.chat_template"]
    chosen = CHOICE.replace("WORDS", json.dumps(list(scenes)))
    for old, new in ((SIGNATURE, "{{- (tool | tojson) + '\\n' }}"), (OPENING, chosen)):
        assert old in template
        template = template.replace(old, new)
    fields["tokenizer.chat_template"] = template
    size = -(-len(follows) // WIDTH) * WIDTH
    embedding, output = (np.zeros((len(tokens), size), np.float32) for _ in range(2))
    for place, (before, after) in enumerate(follows.items()):
        embedding[before, place] = 1
        output[after, place] = CERTAIN / size**0.5  # the norm multiplies by this root
    fields |= {
        "general.architecture": "llama",
        "llama.vocab_size": len(tokens),
        "llama.context_length": context,
        "llama.embedding_length": size,
        "llama.block_count": 1,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 1,
        "llama.attention.key_length": WIDTH,
        "llama.attention.value_length": WIDTH,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH,
    }
    wide, narrow = (np.zeros(shape, np.float32) for shape in ((WIDTH, size), (size, WIDTH)))
    ones = np.ones(size, np.float32)
    layer = {"attn_norm": ones, "ffn_norm": ones, "attn_output": narrow, "ffn_down": narrow}
    layer |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"), wide)
    tensors = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    tensors |= {f"blk.0.{name}.weight": weight for name, weight in layer.items()}
    file.write_bytes(gguf_file(fields, tensors, single=False))


def _spelled(text: str) -> str:
    """A text as the vocabulary has it: every byte as a character that is printed."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return "".join(
        chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in text.encode()
    )


def call(name: str, **arguments: str) -> str:
    """A tool call as the template writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
