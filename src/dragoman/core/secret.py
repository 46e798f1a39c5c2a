"""A value that is used and never shown.

Keys travel through the house as this type, so that a log line, an error or a traceback that prints
one prints a placeholder. It does not know what the value opens.
"""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """Some text that neither prints nor travels in serialised form; `reveal` gives it.

    >>> key = Secret("open sesame")
    >>> print(key, f"{key}", [key])
    *** *** [Secret(***)]
    >>> key.reveal()
    'open sesame'
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself."""
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not serialised")
