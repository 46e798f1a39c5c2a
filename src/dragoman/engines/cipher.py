"""AES-GCM from the package `cryptography`, which the extra `seal` installs."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12


class Cipher:
    """Encryption without stored state: any process with the key can decrypt."""

    kind = "c"

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def close(self, data: bytes, bound: bytes) -> bytes:
        """Encrypt; `bound` is authenticated with it."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, data, bound)

    def open(self, blob: bytes, bound: bytes) -> bytes | None:
        """Decrypt; None if it was changed or bound to something else."""
        try:
            return self._cipher.decrypt(blob[:_NONCE], blob[_NONCE:], bound)
        except (InvalidTag, ValueError):
            return None
