"""The command `dragoman`: words in, one public function called, an exit status out.

No command holds logic of its own: it parses its arguments, calls what does the work, and says
what went wrong in one sentence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .main import parser


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; `words` are those of this process by default.

    Returns the exit status: 0 for success, 1 for a failure, 2 for words that make no sense.
    """
    words = list(sys.argv[1:] if words is None else words)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "serve")
    options = parser().parse_args(words)
    # What a command needs is imported when it runs, so that --help is quick.
    if options.command == "serve":
        from .serve import serve as command
    elif options.command in ("log", "tail"):
        from .history import history as command
    elif options.command == "tokens":
        from .tokens import tokens as command
    else:
        from .chat import talk as command
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads us, `head` perhaps, has read enough
        _silence()
        return 1
    except Exception as error:
        if not _expected(error):
            raise
        print(f"dragoman: {error}", file=sys.stderr)
        return 1


def _silence() -> None:
    """Let what is still to be written go nowhere: Python would try again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _expected(error: Exception) -> bool:
    """Whether an error is one that says for itself what went wrong."""
    from dragoman.core.error import FaultError
    from dragoman.net.errors import NetError
    from dragoman.server.config import ConfigurationError
    from dragoman.server.host import HostError
    from dragoman.server.workers import WorkersError
    from dragoman.stores.base import StoreError

    kinds = FaultError | NetError | ConfigurationError | HostError | StoreError | WorkersError
    return isinstance(error, kinds)
