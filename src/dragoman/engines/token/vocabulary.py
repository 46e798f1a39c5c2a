"""Reads vocabularies from files: a folder's `tokenizer.json`, or ranks as tiktoken has them.

Control tokens are taken out of what encodes ordinary text, so that no text of a user becomes one.
Needs llguidance, of the `local` extra, whose tokenizer encodes.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

try:
    from llguidance import LLTokenizer
except ImportError as error:
    raise ImportError(
        "Vocabularies of files need the extra local: pip install '.[local]' in the checkout.",
        name=error.name,
    ) from error

from dragoman.core.error import FaultError, bad_request

PART = 16_384
"""Characters encoded at a time: encoding holds the interpreter, and others wait (about 15 ms)."""
MAX_RUN = 65_536
"""The most bytes of a prompt without a place to divide them, such as a space before a letter:
repeated signs and white space, mostly."""

MAX_SIZE = 16_777_216
"""Ids that a folder may give to added tokens are below this."""
MAX_GROWTH = 100
"""How many times as long as a text the replacements of a folder may make it."""

_BOUNDARIES = (
    (r"(?<=[A-Za-z])(?= [A-Za-z])", rb"[A-Za-z] "),
    (r"(?<=\S\n)(?=[^\W\d_])", rb"\n[A-Za-z\x80-\xff]"),
    (r"(?<=[A-Za-z])(?=[0-9])", rb"[A-Za-z][0-9]"),
)
"""Where a text may be divided, and what no token may then have in it."""
_SIGN = re.compile(r"[^\w\s]")
_PROBE = "One two\nthree 4 five6\n\nSeven"

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
    text beside the vocabulary. `shown` are control tokens that are text in an answer, unless its
    format knows them: those that the files do not call special.
    """

    def __init__(
        self,
        plain: LLTokenizer,
        size: int,
        controls: Mapping[str, int],
        ends: frozenset[int] = frozenset(),
        added: Mapping[str, int] | None = None,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        added = added or {}
        self.shown = shown
        self._plain = plain
        self.controls = dict(controls)
        named = {**self.controls, **added}
        self.size = max([size, *(id + 1 for id in named.values())])
        self._texts = {id: text.encode() for text, id in named.items()}
        # Without the control tokens, llguidance numbers the other added ones anew.
        first = {text: plain.tokenize_str(text)[:1] for text in added}
        self._moved = {id: added[text] for text, ids in first.items() for id in ids}
        self.ends = frozenset(id for id in ends if 0 <= id < self.size)  # grammars take no others
        self.piece = lru_cache(maxsize=None)(self._piece)

    def encode(self, text: str) -> Sequence[int]:
        """The ids of ordinary text. Raises FaultError for a run of more than `MAX_RUN` characters
        that cannot be divided."""
        text = text.encode("utf-8", "replace").decode()
        if len(text) <= PART:
            return self._encode(text)
        return [id for part in self._parts(text) for id in self._encode(part)]

    def _encode(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self._plain.tokenize_str(text)
        return [self._moved.get(id, id) for id in ids] if self._moved else ids

    def _parts(self, text: str) -> Iterator[str]:
        """The text in parts whose ids together are those of the whole."""
        boundary = self._boundary
        if boundary is None:
            yield text
            return
        start = last = 0
        for found in boundary.finditer(text):
            if found.start() - start > PART and last > start:
                yield text[start:last]
                start = last
            last = found.start()
            if last - start > MAX_RUN:
                break
        for end in (last, len(text)) if len(text) - start > PART else (len(text),):
            if len(text[start:end].encode()) > MAX_RUN:
                problem = (
                    f"The prompt has more than {MAX_RUN} bytes in a row in which no word "
                    "begins (repeated signs or white space): shorten them."
                )
                raise FaultError(bad_request(problem))
            yield text[start:end]
            start = end

    @cached_property
    def _boundary(self) -> re.Pattern[str] | None:
        """Where texts may be divided; None in a vocabulary that joins words, or marks the beginning
        of a text."""
        pieces = b"\0".join(map(self.piece, range(self.size)))
        kinds = [place for place, across in _BOUNDARIES if not re.search(across, pieces)]
        pattern = re.compile("|".join(kinds) or "(?!)")
        parts = re.split(pattern, _PROBE)
        divided = [id for part in parts for id in self._encode(part)]
        return pattern if len(parts) > 1 and divided == self._encode(_PROBE) else None

    def _piece(self, id: int) -> bytes:
        if (text := self._texts.get(id)) is not None:
            return text
        if not 0 <= id < self._plain.vocab_size:
            return b""
        piece = self._plain.decode_bytes([id])
        return b"" if piece == b"<[%d]>" % id else piece  # a number that no token has


class _Added(Struct):
    """A token that a folder adds to its vocabulary."""

    content: Annotated[str, Meta(min_length=1)]
    id: Annotated[int, Meta(ge=0, lt=MAX_SIZE)]
    special: bool = False

    @property
    def ordinary(self) -> bool:
        """Whether it is part of ordinary text: white space, or a word without any sign in it, which
        no format takes for markup."""
        return not self.content.strip() or not (self.special or _SIGN.search(self.content))


class _Described(Struct):
    added_tokens: list[_Added] | None = None


def _growth(normalizer: Any) -> float:
    """How many times as long replacements may make a text, at the most."""
    match normalizer:
        case {"normalizers": list(parts)}:
            return math.prod(map(_growth, parts))
        case {"type": "Replace", "content": str(content), "pattern": {"String": str(replaced)}}:
            return max(1, len(content) / max(len(replaced), 1))
        case {"type": "Replace", "content": str(content)}:  # an expression may match nothing, too
            return 1 + len(content)
    return 1


def from_folder(folder: str | Path) -> Vocabulary:
    """The vocabulary of a model folder, from its `tokenizer.json`; its ends from
    `generation_config.json` and `tokenizer_config.json`, where there are any.

    Raises FileNotFoundError where there is no `tokenizer.json`, and ValueError for an invalid one.
    """
    folder = Path(folder)
    described = _object(folder / "tokenizer.json")
    try:
        added = msgspec.convert(described, _Described).added_tokens or []
    except msgspec.ValidationError as error:
        raise ValueError(f"{folder / 'tokenizer.json'} is no tokenizer: {error}") from error
    if _growth(described.get("normalizer")) > MAX_GROWTH:
        problem = f"its normalizer may make a text more than {MAX_GROWTH} times as long"
        raise ValueError(f"{folder / 'tokenizer.json'} cannot be used: {problem}")
    words = {token.content: token.id for token in added if token.ordinary}
    controls = {token.content: token.id for token in added if not token.ordinary}
    every = described.get("added_tokens") or []
    kept = [token for token in every if token["content"] in words]
    # What a training run has set there would cut a prompt, or fill it up.
    unset = dict.fromkeys(("post_processor", "truncation", "padding"))
    plain = {**described, "added_tokens": kept, **unset}
    try:
        tokenizer = LLTokenizer(msgspec.json.encode(plain).decode())
    except BaseException as error:  # a library's panic is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(f"{folder / 'tokenizer.json'} is no tokenizer: {error}") from error
    ends, size = _ends(folder, controls), tokenizer.vocab_size
    shown = frozenset(token.content for token in added if not token.special)
    return Vocabulary(tokenizer, size, controls, ends, words, shown.intersection(controls))


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
    tokenizer = LLTokenizer(msgspec.json.encode(_byte_pairs(ranks, pattern)).decode())
    return Vocabulary(tokenizer, max(size, last + 1), controls, ends)


def _byte_pairs(ranks: Mapping[bytes, int], pattern: str) -> dict[str, Any]:
    """Ranks as a `tokenizer.json`, whose encoder takes time in proportion to the text. (The one
    for ranks takes its square where no word begins: minutes for a page of dashes.)"""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (value for value in range(256) if value not in printed)
    letters = {value: value for value in printed} | {v: 256 + n for n, v in enumerate(others)}
    names = {token: token.decode("latin-1").translate(letters) for token in ranks}
    bytewise = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**split, "invert": False}, {"type": "ByteLevel", **bytewise}],
        },
        "decoder": {"type": "ByteLevel", **bytewise},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {names[token]: rank for token, rank in ranks.items()},
            "merges": list(_merges(ranks, names)),
        },
    }


def _merges(ranks: Mapping[bytes, int], names: Mapping[bytes, str]) -> Iterator[tuple[str, str]]:
    """The pairs that become a token, by its rank: every way to divide it into two.

    Of two ways that meet in a text (`aba` of `ab a ba`), the left one comes first there: its first
    half is what the other ends with.
    """
    for token in sorted(ranks, key=ranks.__getitem__):
        size = len(token)
        for short in range(1, size // 2 + 1):
            overlap = token.startswith(token[-short:])
            for at in sorted({short, size - short}, reverse=overlap):
                left, right = names.get(token[:at]), names.get(token[at:])
                if left is not None and right is not None:
                    yield left, right


def _ends(folder: Path, controls: Mapping[str, int]) -> frozenset[int]:
    """The ids that end an answer, from two files of the folder."""
    ends: set[int] = set()
    generation, config = folder / "generation_config.json", folder / "tokenizer_config.json"
    if generation.exists():
        eos = _object(generation).get("eos_token_id")
        ends.update(id for id in (eos if isinstance(eos, list) else [eos]) if type(id) is int)
    if config.exists():
        named = _object(config).get("eos_token")
        text = named.get("content") if isinstance(named, dict) else named
        if isinstance(text, str) and text in controls:
            ends.add(controls[text])
    return frozenset(ends)


def _object(file: Path) -> dict[str, Any]:
    if file.exists() and not file.is_file():  # a pipe or a device has no end
        raise ValueError(f"{file} is no file")
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON object: {error}") from error
