"""Keeps numpy's BLAS to one thread while the pocket model computes: its matrices are so small that
sharing one between cores costs far more than multiplying it.

The BLAS of numpy's own wheels (OpenBLAS) can be told so; for any other one its variable has to be
set, such as `OPENBLAS_NUM_THREADS=1`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_FOLDERS = ("../numpy.libs", ".dylibs")
"""Where the wheels keep their libraries, seen from numpy's folder."""
_GET, _SET = "scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"


def _found() -> tuple[Callable[[], int], Callable[[int], object]]:
    """How to ask for the number of threads and how to set it; where there is no way, no harm."""
    home = Path(np.__file__).parent
    for folder in _FOLDERS:
        for file in (home / folder).glob("*openblas*"):
            library = ctypes.CDLL(str(file))
            if hasattr(library, _GET) and hasattr(library, _SET):
                return getattr(library, _GET), getattr(library, _SET)
    return (lambda: 1), (lambda count: None)


_get, _set = _found()


@contextmanager
def one_thread() -> Iterator[None]:
    """While this holds, BLAS has one thread; then again as many as before."""
    before = _get()
    _set(1)
    try:
        yield
    finally:
        _set(before)
