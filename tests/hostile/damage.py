"""Random damage to files: bytes flipped, cut out, doubled, numbers of the protobuf made extreme."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

# varints: 0, 1, 127, 255, 2^31 - 1, -1, 2^63
_EXTREME = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\xff\1",
    b"\xff\xff\xff\xff\7",
    b"\xff" * 9 + b"\1",
    b"\x80" * 9 + b"\1",
)


@dataclass(frozen=True)
class Edit:
    """At `at` (a fraction of the file), `removed` bytes become `added`."""

    at: float
    removed: int
    added: bytes

    def apply(self, data: bytes) -> bytes:
        """The file after it."""
        start = int(self.at * len(data))
        return data[:start] + self.added + data[start + self.removed :]


def edits(rng: random.Random, data: bytes) -> list[Edit]:
    """One to four edits, each of a random kind."""
    kinds: list[Callable[[], Edit]] = [
        lambda: Edit(rng.random(), 1, bytes([rng.randrange(256)])),
        lambda: Edit(rng.random(), 1, rng.choice(_EXTREME)),
        lambda: Edit(rng.random(), rng.randrange(1, 9), b""),
        lambda: Edit(rng.random(), 0, rng.randbytes(rng.randrange(1, 9))),
        lambda: Edit(rng.random(), 0, _part(rng, data)),
    ]
    return [rng.choice(kinds)() for _ in range(rng.choice((1, 1, 1, 2, 4)))]


def _part(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[start : start + rng.randrange(1, 40)]


def mutant(data: bytes, made: list[Edit]) -> bytes:
    """The file after all edits."""
    for edit in made:
        data = edit.apply(data)
    return data
