"""Models in GGUF files, run by llama.cpp's own server inside this process.

The server listens on a free port of this machine, with a key nobody else has, and a remote engine
stands before it as before any other. It needs the `llamacpp` extra. What is in the file, and
how its model writes calls, llama.cpp knows; nothing here does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.request import JSONObject, JSONSchema, Request
from dragoman.core.secret import Secret

from .aligned import Aligner
from .completions import remote
from .find_format import find_format
from .mint import new_id
from .wrap import Wrapper

NEEDED = "xllamacpp"
MISSING = "GGUF files need the llamacpp extra: pip install 'dragoman[llamacpp]'"
MAGIC = b"GGUF"
"""What every GGUF file begins with."""
PROFILE = "llama.cpp"
PARALLEL = 4
"""Sequences written at a time; they share the context."""
QUIET = -1
"""The verbosity at which llama.cpp writes nothing to our standard error."""


def llamacpp(file: str | Path, **options: Any) -> LlamaCpp:
    """The engine for the model in a GGUF file; `options` are those of `prepare`.

    Raises ImportError where the extra is missing, and ValueError, in a sentence, for a file that is
    no model llama.cpp can run, and for too little memory.
    """
    return prepare(file, **options)()


def prepare(
    file: str | Path,
    *,
    format: str | None = None,
    context: int | None = None,
    parallel: int = PARALLEL,
    threads: int | None = None,
    gpu_layers: int | None = None,
) -> Callable[[], LlamaCpp]:
    """The same in two steps: what can be said at once is said now, the model is loaded when the
    result is called.

    - `format` is the name of a token format, to be used in place of llama.cpp's own chat.
    - `context` is how many tokens each sequence may have; by default as many as the model was made
      for. `parallel` sequences are written at a time.
    - `threads` is how many threads compute, `gpu_layers` how many layers are put on the graphics
      card; by default llama.cpp decides.
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
        wanted = library.CommonParams()
        wanted.model.path = str(path)
        wanted.model_alias = {name_of(file)}
        wanted.n_parallel = parallel
        wanted.n_ctx = (context or 0) * parallel  # 0 is what the model was made for
        wanted.ui = wanted.warmup = False
        wanted.hostnames, wanted.port = ["127.0.0.1"], 0  # 0 is any free port
        wanted.verbosity = QUIET
        if threads is not None:
            wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
        if gpu_layers is not None:
            wanted.n_gpu_layers = gpu_layers
        key = Secret(new_id())
        wanted.api_keys = [key.reveal()]
        return LlamaCpp(_started(library, wanted, path), key, format)

    return load


def name_of(file: str | Path) -> str:
    """What the model is called in the listing.

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


def _started(library: Any, wanted: Any, file: Path) -> Any:
    """The server, which found a port for itself. Raises ValueError where it does not start."""
    try:
        return library.Server(wanted)
    except (RuntimeError, MemoryError) as error:
        raise ValueError(
            f"llama.cpp cannot run {file}: {error} The file may be broken or of a model it does "
            "not know, or too large for the memory there is (a smaller context takes less)."
        ) from error


class LlamaCpp(Wrapper):
    """A remote engine with the server it asks. `close` stops the server.

    What stands before the JSON of a demanded form (white space, a fence) llama.cpp takes out of the
    text and leaves among its tokens, so that they are aligned here.
    """

    def __init__(self, server: Any, key: Secret, format: str | None) -> None:
        address = f"{server.listening_address}/v1"
        super().__init__(remote(address, key=key, profile=PROFILE, format=format))
        self._running = [server]

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """What the server answers, its tokens those of its text."""
        aligner = Aligner() if self.aside(request, caller) is None else None
        async with aclosing(self.engine.stream(request, caller)) as events:
            async for event in events:
                fit = event if aligner is None else aligner.feed(event)
                if fit is not None:
                    yield fit

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine inside, where nobody asked for the tokens of a demanded form."""
        formed = isinstance(request.format, JSONObject | JSONSchema)
        return None if formed and request.sampling.logprobs else self.engine

    async def close(self) -> None:
        """Close the connections, then the server; it stops when nobody has it any more."""
        await super().close()
        await asyncio.to_thread(self._running.clear)
