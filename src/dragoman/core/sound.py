"""Stores a session's sound as PCM16 in a bounded arena, and cuts transcripts to what was played."""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import OrderedDict

RATE = 24_000
"""Samples in a second: 16 bits, one channel."""
BYTES_PER_MS = RATE * 2 // 1000
ENDLESS = 0xFFFFFFFF
"""The length, in a WAV file, of what has no length yet: OpenAI streams WAV with it."""

Sound = bytes | bytearray
"""PCM16 of a user or a model."""
Place = tuple[str, int]
"""A part of an item: the item's id, and the part's index."""


def milliseconds(size: int) -> int:
    """How long so many bytes of sound are.

    >>> milliseconds(48_000)
    1000
    """
    return size // BYTES_PER_MS


def from_base64(text: str) -> bytes:
    """What base64 stands for. Raises ValueError. Piece by piece: in a thread, others run between.

    >>> from_base64("AAEC"), from_base64("AA==")
    (b'\\x00\\x01\\x02', b'\\x00')
    """
    if text.find("=", 0, max(len(text) - 2, 0)) >= 0:
        raise ValueError("padding before the end")
    starts = range(0, len(text), _STEP)
    return b"".join([b64decode(text[at : at + _STEP], validate=True) for at in starts])


_STEP = 1 << 20
"""Characters of base64, which take 4 ms."""
_BYTES = 3 << 18
"""The bytes that those stand for."""


def divided(text: str) -> list[str]:
    """Sound as base64, in pieces of a second, which can be decoded one by one.

    >>> [len(piece) for piece in divided("A" * 100_000)]
    [65536, 34464]
    """
    return [text[at : at + _SECOND] for at in range(0, len(text), _SECOND)]


_SECOND = 1 << 16
"""Characters of base64 that are whole samples."""


def to_base64(sound: Sound, head: bytes = b"") -> str:
    """Sound behind a head as base64. Piece by piece, too; meanwhile there may come more of it.

    >>> to_base64(b"bc", b"a")
    'YWJj'
    """
    size, first = len(sound), _BYTES - len(head)
    starts = range(first, size, _BYTES)
    pieces = [head + sound[:first], *(sound[at : min(at + _BYTES, size)] for at in starts)]
    return "".join([b64encode(piece).decode() for piece in pieces])


def wav_head(size: int | None = None, rate: int = RATE) -> bytes:
    """The head of a WAV file; without a `size`, of one whose length is not known yet."""
    whole, data = (ENDLESS, ENDLESS) if size is None else (36 + size, size)
    head = b"WAVEfmt " + (16).to_bytes(4, "little") + b"\x01\0\x01\0"
    rates = rate.to_bytes(4, "little") + (rate * 2).to_bytes(4, "little") + b"\x02\0\x10\0"
    return (
        b"RIFF" + whole.to_bytes(4, "little") + head + rates + b"data" + data.to_bytes(4, "little")
    )


def wav(audio: Sound, rate: int = RATE) -> bytes:
    """The sound as a WAV file.

    >>> len(wav(b"\\0" * 480)), wav(b"")[:4]
    (524, b'RIFF')
    """
    return wav_head(len(audio), rate) + audio


class Arena:
    """Keeps the sound of parts, `most` bytes of it together: the oldest goes first.

    >>> arena = Arena(4)
    >>> arena.add(("a", 0), b"1234"), arena.add(("b", 0), b"56")
    ([], [('a', 0)])
    >>> arena.get(("a", 0)), bytes(arena.get(("b", 0))), arena.size
    (b'', b'56', 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: OrderedDict[Place, bytearray] = OrderedDict()
        self.size = 0

    def add(self, place: Place, audio: Sound) -> list[Place]:
        """Add sound to a part. A bytearray that is its first is kept itself. The parts whose sound
        was dropped for it: where it alone is more than there is room for, itself."""
        if place in self._parts:
            self._parts[place] += audio
        else:
            self._parts[place] = audio if isinstance(audio, bytearray) else bytearray(audio)
        self.size += len(audio)
        dropped = []
        while self.size > self._most:
            oldest, sound = self._parts.popitem(last=False)
            self.size -= len(sound)
            dropped.append(oldest)
        return dropped

    def get(self, place: Place) -> Sound:
        """The sound of a part, to which more may be added; empty where there is none, or no
        longer."""
        return self._parts.get(place, b"")

    def length(self, place: Place) -> int:
        """Bytes of the sound of a part."""
        return len(self._parts.get(place, b""))

    def cut(self, place: Place, size: int) -> None:
        """Keep so many bytes of a part."""
        if (sound := self._parts.get(place)) is not None:
            self.size -= len(sound) - len(sound[:size])
            del sound[size:]

    def drop(self, item_id: str) -> None:
        """Forget the sound of an item."""
        for place in [place for place in self._parts if place[0] == item_id]:
            self.size -= len(self._parts.pop(place))


class Spoken:
    """What a part says, and when: its transcript, by the position in its sound.

    A piece of the transcript is spoken by the sound that follows, up to the next piece.

    >>> spoken = Spoken()
    >>> spoken.add_text("Good day. ")
    >>> spoken.add_sound(48_000)
    True
    >>> spoken.add_text("How are you?")
    >>> spoken.add_sound(96_000)
    True
    >>> spoken.cut(1700)
    >>> spoken.text, spoken.length
    ('Good day. How ', 1700)
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._marks: list[tuple[int, int]] = []  # where pieces begin, in the sound and in the text
        self._characters = 0
        self._size = 0
        self._ended = False  # it was cut: what follows was not played

    @property
    def length(self) -> int:
        """Milliseconds of the sound."""
        return milliseconds(self._size)

    @property
    def text(self) -> str:
        """The transcript."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add_text(self, text: str) -> None:
        """Add a piece of the transcript."""
        if self._ended or not text:
            return
        if not self._marks or self._marks[-1][0] != self._size:
            self._marks.append((self._size, self._characters))
        self._pieces.append(text)
        self._characters += len(text)

    def add_sound(self, size: int) -> bool:
        """Add so many bytes of sound; false after the cut."""
        if not self._ended:
            self._size += size
        return not self._ended

    def cut(self, ms: int) -> None:
        """Drop everything after a position, and what is added later. Of the piece that it is in,
        the words stay that end before it in proportion to its sound."""
        self._ended = True
        end, text, kept = ms * BYTES_PER_MS, self.text, 0
        if end >= self._size:
            return
        place = bisect_left(self._marks, (end, 0))
        if place:
            start, kept = self._marks[place - 1]
            stop, after = [*self._marks[place : place + 1], (self._size, len(text))][0]
            if end < stop:
                most = kept + (after - kept) * (end - start) // (stop - start) + 1
                begun = text[kept:most].rstrip()
                last = begun.rsplit(None, 1)[-1:]  # it is not over, or its space is not
                after = kept + len(begun) - sum(map(len, last))
            kept = after
        del self._marks[place:]
        self._pieces, self._size = [text[:kept]], end
