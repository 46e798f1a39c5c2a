"""Who we are, as the other side of a line sees it.

Our version, the mark on every answer by which one Dragoman knows another, and the header that
counts how many of us a request has passed. It does not know who reads them.
"""

VERSION = "0.1.0"

MARK = "x-dragoman"
"""The header every answer carries; its value is the version."""

HOPS = "x-dragoman-hops"
"""The request header that counts the Dragomans passed so far."""
