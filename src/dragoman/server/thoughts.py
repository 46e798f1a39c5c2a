"""What stands between every client and every engine: what a conversation needs to be gone on with.

It puts wrappers around an engine in the one order in which they make sense, and does nothing
itself: blobs are opened before anything is looked for, what is missing is put back before a
conversation is shortened, and whoever asks the engine last sees to what it refuses.
"""

from __future__ import annotations

from dragoman.core.interfaces import Engine
from dragoman.engines.compact import Compacting
from dragoman.engines.fitting import Fitting
from dragoman.engines.recall import Recalling
from dragoman.engines.resend import Resending
from dragoman.engines.seal import Seal
from dragoman.engines.sealing import Sealing
from dragoman.engines.vault import Vault

from .settings import Settings


def thoughtful(engine: Engine, settings: Settings, seal: Seal | None = None) -> Engine:
    """The engine, with all that makes conversations last around it."""
    again = Resending(engine, again=settings.resend_unsealed)
    short = Compacting(Fitting(again))
    recalling = Recalling(short, Vault(settings.reasoning_vault))
    return recalling if seal is None else Sealing(recalling, seal)
