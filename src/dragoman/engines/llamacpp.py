"""Models in GGUF files, run by llama.cpp's server inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman.core.event import Delta, Event, ItemDone, PartDone
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import Message, Part, Text, Token
from dragoman.core.request import JSONObject, JSONSchema, Request

from .base import Prepared, Wrapper, new_id
from .completions import remote
from .find_format import find_format

NEEDED = "xllamacpp"
MISSING = "GGUF files need the llamacpp extra: pip install 'dragoman[llamacpp]'"
MAGIC = b"GGUF"
"""The first bytes of every GGUF file."""
PROFILE = "llama.cpp"
PARALLEL = 4
"""Sequences at a time; they share the context."""
QUIET = -1
"""The verbosity at which llama.cpp writes nothing to our standard error."""


def prepare(
    file: str | Path,
    *,
    format: str | None = None,
    context: int | None = None,
    parallel: int = PARALLEL,
    threads: int | None = None,
    gpu_layers: int | None = None,
) -> Callable[[], LlamaCpp]:
    """The engine for the model in a GGUF file. Options and file are checked now; the model is
    loaded when the result is called.

    - `format` is the name of a token format, to be used in place of llama.cpp's own chat.
    - `context` is the most tokens of each sequence; by default as many as the model was made for.
      `parallel` sequences run at a time.
    - `threads` is how many threads compute, `gpu_layers` how many layers are on the graphics card;
      by default llama.cpp decides.

    Both raise ImportError where the extra is missing, and ValueError, in a sentence, for a file
    that llama.cpp cannot run, and for too little memory.
    """
    if find_spec(NEEDED) is None:
        raise ImportError(MISSING)
    if format is not None:
        find_format(format)
    path = Path(file).expanduser()
    check(path)
    for name, number in (("context", context), ("parallel", parallel), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}.")

    def load() -> LlamaCpp:
        library = import_module(NEEDED)
        params = library.CommonParams()
        params.model.path = str(path)
        params.model_alias = {name_of(file)}
        params.n_parallel = parallel
        params.n_ctx = (context or 0) * parallel  # 0 is what the model was made for
        params.ui = params.warmup = False
        params.hostnames, params.port = ["127.0.0.1"], 0  # 0 is any free port
        params.verbosity = QUIET
        if threads is not None:
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        key = Secret(new_id())
        params.api_keys = [key.reveal()]
        try:
            server = library.Server(params)
        except (RuntimeError, MemoryError) as error:
            raise ValueError(
                f"llama.cpp cannot run {path}: {error} The file may be broken or of a model it "
                "does not know, or too large for the memory there is (a smaller context takes "
                "less)."
            ) from error
        return LlamaCpp(server, key, format)

    return load


def name_of(file: str | Path) -> str:
    """The model's name in the listing.

    >>> name_of("models/qwen3-0.6b.gguf")
    'qwen3-0.6b'
    """
    return Path(file).stem


def check(file: Path) -> None:
    """Raise ValueError for what is no GGUF file."""
    if not file.is_file():
        raise ValueError(f"{file} is no file.")
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{file} is no GGUF file.")


class LlamaCpp(Wrapper):
    """A remote engine and the server behind it. `close` stops the server.

    llama.cpp removes what stands before the JSON of a required format (white space, a fence) from
    the text but not from its log-probabilities, so they are aligned here.
    """

    def __init__(self, server: Any, key: Secret, format: str | None) -> None:
        address = f"{server.listening_address}/v1"
        super().__init__(remote(address, key=key, profile=PROFILE, format=format))
        self._running = [server]

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Aligns log-probabilities of a required format; there is nothing else to do."""
        formed = isinstance(request.format, JSONObject | JSONSchema)
        if not (formed and request.sampling.logprobs):
            return None
        align = Aligner().feed
        return Prepared(request, lambda events: [new for old in events if (new := align(old))])

    async def close(self) -> None:
        """Close the connections, then the server; it stops with its last reference."""
        await super().close()
        await asyncio.to_thread(self._running.clear)


# ---- alignment of log-probabilities ----------------------------------------------------------


def tokens_of_text(tokens: Sequence[Token], text: str) -> tuple[Token, ...]:
    """The tokens from where a text begins in them; all of them where it is not found.

    >>> [token.text for token in tokens_of_text([Token("```"), Token(' {"')], '{"')]
    ['{"']
    """
    encoded, joined = _bytes(text), b"".join(map(_octets, tokens))
    # The text is at the end, unless the server holds some of it back.
    extra = len(joined) - len(encoded) if joined.endswith(encoded) else joined.find(encoded)
    tokens_left: list[Token] = []
    for token in tokens:
        octets = _octets(token)
        if extra <= 0:
            tokens_left.append(token)
        elif len(octets) > extra:
            rest = octets[extra:]
            tokens_left.append(replace(token, text=rest.decode("utf-8", "replace"), bytes=rest))
        extra -= len(octets)
    return tuple(tokens_left)


class Aligner:
    """Aligns the log-probabilities of one answer with its text."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[Token]] = {}  # of parts without text yet
        self._emitted: dict[tuple[int, int], list[Token]] = {}  # of parts with text

    def feed(self, event: Event) -> Event | None:
        """The event with aligned tokens; None for one that has no text."""
        match event:
            case Delta(kind="text"):
                return self._delta(event)
            case PartDone(index, place, part):
                return replace(event, part=self._part(index, place, part))
            case ItemDone(index, item):
                if isinstance(item, Message) and not isinstance(item.content, str):
                    parts = (self._part(index, *each) for each in enumerate(item.content))
                    return replace(event, item=replace(item, content=tuple(parts)))
        return event

    def _delta(self, delta: Delta) -> Delta | None:
        place = (delta.index, delta.part_index)
        if (tokens_left := self._emitted.get(place)) is not None:
            tokens_left += delta.tokens
            return delta
        held = self._held.setdefault(place, [])
        held += delta.tokens
        if not delta.data:
            return None
        tokens = tokens_of_text(held, delta.data)
        self._emitted[place] = list(tokens)
        return replace(delta, tokens=tokens)

    def _part(self, index: int, place: int, part: Part) -> Part:
        if not isinstance(part, Text) or (index, place) not in self._held:
            return part
        return replace(part, tokens=tuple(self._emitted.get((index, place), ())))


def _octets(token: Token) -> bytes:
    return token.bytes if token.bytes is not None else _bytes(token.text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
