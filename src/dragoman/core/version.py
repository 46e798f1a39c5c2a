"""Names and version by which Dragoman identifies itself in HTTP headers."""

from __future__ import annotations

VERSION = "0.1.0"

VERSION_HEADER = "x-dragoman"
"""The header every answer carries; its value is the version."""

HOPS_HEADER = "x-dragoman-hops"
"""The request header that counts the Dragomans passed so far."""
