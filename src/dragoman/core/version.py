"""The version, and the names of the HTTP headers that carry it and count hops."""

from __future__ import annotations

VERSION = "0.1.0"

VERSION_HEADER = "x-dragoman"
"""The header of every answer; its value is the version."""

HOPS_HEADER = "x-dragoman-hops"
"""The request header that counts the gateways passed so far."""
