"""Reads a model's folder: sizes, weights, vocabulary and chat template, each from its usual file.

The folder is laid out as those of other Llamas are; only what the pocket model has is understood.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import json

from dragoman.engines.token.vocabulary import Vocabulary, from_folder
from dragoman.formats.template import Template

from .model import Pocket
from .network import Network, Shape
from .weights import read


def load(folder: Path) -> tuple[Template, Pocket, Vocabulary]:
    """The format, the model and its vocabulary."""
    shape = json.decode((folder / "config.json").read_bytes(), type=Shape)
    model = Pocket(Network(shape, read(folder / "model.safetensors")))
    vocabulary = from_folder(folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return Template(template, "hermes", vocabulary.controls), model, vocabulary
