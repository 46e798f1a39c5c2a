"""AES-GCM from the package `cryptography`, which the extra `seal` installs."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12


class Cipher:
    """A way to seal that keeps nothing: whoever has the key can open, in any process."""

    kind = "c"

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def close(self, said: bytes, bound: bytes) -> bytes:
        """The bytes of a blob."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, said, bound)

    def open(self, blob: bytes, bound: bytes) -> bytes | None:
        """What was sealed, if it was for these and nobody changed it."""
        try:
            return self._cipher.decrypt(blob[:_NONCE], blob[_NONCE:], bound)
        except (InvalidTag, ValueError):
            return None
