"""Reads vocabularies from files: a folder's `tokenizer.json`, or ranks as tiktoken has them.

Control tokens are taken out of what encodes ordinary text, so that no text of a user becomes one.
Needs llguidance, of the `local` extra, whose tokenizer encodes.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

try:
    from llguidance import LLTokenizer
except ImportError as error:
    raise ImportError(
        "Vocabularies of files need llguidance: pip install 'dragoman[local]'.", name=error.name
    ) from error

_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_ENDING}",
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_ENDING}",
)
O200K = "|".join(
    (*_WORDS, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
)
"""How gpt-oss's vocabulary splits text into words."""

HARMONY = {
    "<|startoftext|>": 199_998,
    "<|endoftext|>": 199_999,
    "<|return|>": 200_002,
    "<|constrain|>": 200_003,
    "<|channel|>": 200_005,
    "<|start|>": 200_006,
    "<|end|>": 200_007,
    "<|message|>": 200_008,
    "<|call|>": 200_012,
}
"""The control tokens of gpt-oss."""


class Vocabulary:
    """A `Tokenizer` over llguidance's.

    `ends` are the ids that end an answer according to the files, `added` the tokens of ordinary
    text beside the vocabulary.
    """

    def __init__(
        self,
        plain: LLTokenizer,
        size: int,
        controls: Mapping[str, int],
        ends: frozenset[int] = frozenset(),
        added: Mapping[str, int] | None = None,
    ) -> None:
        added = added or {}
        self._plain = plain
        self.controls = dict(controls)
        named = {**self.controls, **added}
        self.size = max([size, *(id + 1 for id in named.values())])
        self._texts = {id: text.encode() for text, id in named.items()}
        # Without the control tokens, llguidance numbers the other added ones anew.
        self._moved = {plain.tokenize_str(text)[0]: id for text, id in added.items()}
        self.ends = ends
        self.piece = lru_cache(maxsize=None)(self._piece)

    def encode(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self._plain.tokenize_str(text.encode("utf-8", "replace").decode())
        return [self._moved.get(id, id) for id in ids] if self._moved else ids

    def _piece(self, id: int) -> bytes:
        if (text := self._texts.get(id)) is not None:
            return text
        if not 0 <= id < self._plain.vocab_size:
            return b""
        piece = self._plain.decode_bytes([id])
        return b"" if piece == b"<[%d]>" % id else piece  # a number that no token has


def from_folder(folder: str | Path) -> Vocabulary:
    """The vocabulary of a model folder, from its `tokenizer.json`; its ends from
    `generation_config.json` and `tokenizer_config.json`, where there are any.

    Raises FileNotFoundError where there is no `tokenizer.json`, and ValueError for an invalid one.
    """
    folder = Path(folder)
    described = _object(folder / "tokenizer.json")
    added = described.get("added_tokens") or ()
    controls = {token["content"]: token["id"] for token in added if token["content"].strip()}
    spaces = [token for token in added if not token["content"].strip()]  # runs of white space
    plain = {**described, "added_tokens": spaces, "post_processor": None}
    try:
        tokenizer = LLTokenizer(msgspec.json.encode(plain).decode())
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder / 'tokenizer.json'} is no tokenizer: {error}") from error
    white = {token["content"]: token["id"] for token in spaces}
    size = tokenizer.vocab_size
    return Vocabulary(tokenizer, size, controls, _ends(folder, controls), white)


def from_ranks(
    file: str | Path,
    controls: Mapping[str, int] = HARMONY,
    pattern: str = O200K,
    ends: frozenset[int] = frozenset(),
    size: int = 0,
) -> Vocabulary:
    """The vocabulary of a file with a token in base64 and its rank on each line.

    By default the control tokens and the pattern are those of gpt-oss, whose file is
    `o200k_base.tiktoken` and which has 201,088 ids: `size` counts those beyond the last named one.
    Raises FileNotFoundError, and ValueError for a file of another kind.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(Path(file).read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: no token and rank") from error
    last = max((*ranks.values(), *controls.values()))
    made: Any = LLTokenizer  # its type stubs lack `from_tiktoken`
    tokenizer = made.from_tiktoken(  # it requires one control token: an empty text
        encoder=ranks, special_tokens={"": last + 1}, pattern=pattern, eos_token=last + 1
    )
    return Vocabulary(tokenizer, max(size, last + 1), controls, ends)


def _ends(folder: Path, controls: Mapping[str, int]) -> frozenset[int]:
    """The ids that end an answer, from two files of the folder."""
    ends: set[int] = set()
    generation, config = folder / "generation_config.json", folder / "tokenizer_config.json"
    if generation.exists():
        eos = _object(generation).get("eos_token_id")
        ends.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if config.exists():
        named = _object(config).get("eos_token")
        text = named.get("content") if isinstance(named, dict) else named
        if isinstance(text, str) and text in controls:
            ends.add(controls[text])
    return frozenset(ends)


def _object(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is no JSON object: {error}") from error
