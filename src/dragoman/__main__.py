"""`python -m dragoman` is the command `dragoman`. Nothing else happens here; see `cli`."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
