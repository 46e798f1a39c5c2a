"""Gives this folder's tests the real upstream."""

from tests.upstream.llamacpp import llamacpp

__all__ = ["llamacpp"]
