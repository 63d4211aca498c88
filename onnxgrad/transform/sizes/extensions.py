"""Readings of constants that continue beyond the file's size, and whether the user accepts them.

A constant that holds positions 0 to 6 may count on, or stop at a bound that the file does not show.
One size cannot decide this, so each reading is accepted by the user or compared with another
export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from onnxgrad.batching.layout import Size
from onnxgrad.errors import InputError
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.var import Var
from onnxgrad.vocabulary import EVERY_READING
from onnxgrad.wording import first_of, option, perhaps

_ROUNDED = 1e-3  # relative, of rates found in tables of float32
_WINDOW = "a sliding window of more positions than the file has looks the same"
_UNMASKED = (
    "other positions turn at other rates, as in networks with sliding windows, and no mask is in "
    "the file: the mask of a window of more positions than the file has may be left out"
)


@dataclass(frozen=True)
class Extension:
    """A constant and the reading by which it continues.

    what: the constant, for messages. others: further readings that fit. words: the reading in
    words. beyond: its first values beyond the file. sizes: the sizes that it follows. is_relative:
    whether it holds rotary positions or slopes of distances. is_mask: whether it holds numbers of
    pairs of positions that a longer sliding window would have, too. rates: of rotary positions,
    radians a position, in order.
    """

    name: str
    what: str
    reading: str
    others: tuple[str, ...]
    words: str
    beyond: str
    sizes: tuple[Size, ...]
    is_relative: bool = False
    is_mask: bool = False
    rates: tuple[float, ...] = ()

    def symbols(self) -> frozenset[str]:
        """Returns the opened sizes that it follows."""
        return frozenset(s for size in self.sizes for s in algebra.symbols(size))

    def turns_unlike(self, other: Extension) -> bool:
        """Returns whether it holds rotary positions of the same size at other rates."""
        alike = len(self.rates) == len(other.rates) and np.allclose(
            self.rates, other.rates, _ROUNDED, 0
        )
        return self.sizes == other.sizes and not alike


@dataclass
class Extensions:
    """The readings in use. `chosen`: readings by constant; '*' accepts all as shown."""

    chosen: Mapping[str, str] = field(default_factory=dict)
    used: dict[tuple[str, str], Extension] = field(default_factory=dict)

    def asked(self, v: Var) -> str:
        """Returns the reading that the user chose for a constant, or ''."""
        return "" if v.name == EVERY_READING else self.chosen.get(v.name, "")

    def add(self, made: Extension) -> None:
        """Records a reading that the model needs."""
        self.used.setdefault((made.name, made.reading), made)

    def compared_up_to(self, compared: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        """Returns the bound of each size whose readings only another export decides. `compared`:
        the largest compared sizes beyond the file's. Raises InputError that names a constant if
        nothing decides.
        """
        unused = [n for n in self.chosen if n not in {e.name for e in self.used.values()}]
        for name in unused if unused != [EVERY_READING] else ():
            if name != EVERY_READING:
                flag = option(f"--extend {name}={self.chosen[name]}", "extend")
                known = [e.name for e in self.used.values()]
                raise InputError(
                    f"{flag}: no constant '{name}' meets an opened size{perhaps(name, known)}"
                )
        windows = self._windows()
        accepted = windows if EVERY_READING in self.chosen else self.used.values()
        left = [e for e in accepted if e.name not in self.chosen]
        open_ = [e for e in left if not e.symbols() <= compared.keys()]
        if open_:
            raise InputError(_refusal(open_, windows))
        return {
            s: (compared[s], f"{e.what} is compared up to this size, as {e.reading}")
            for e in left
            for s in e.symbols()
        }

    def _windows(self) -> list[Extension]:
        """Returns the constants behind which a sliding window of more positions than the file has
        may be. Networks with rotary positions or slopes often have layers with one. If such layers
        have rates of their own and no number belongs to pairs of positions, their mask may be left
        out, as the transformers library does.
        """
        used = [*self.used.values()]
        relative = [e for e in used if e.is_relative]
        if not relative or any(e.is_mask or len(e.sizes) > 1 for e in used):
            return [e for e in used if relative and e.is_mask]
        first = next((e for e in relative if e.rates), None)
        return [e for e in relative if e.rates and first and e.turns_unlike(first)]


def _refusal(left: list[Extension], windows: list[Extension]) -> str:
    first, *rest = left
    name = first.name
    accept = option(f"--extend {name}={first.reading}", f"extend={{{name!r}: {first.reading!r}}}")
    others = f" (or {', '.join(first.others)})" if first.others else ""
    every = option(f"--extend '{EVERY_READING}'", f"extend={EVERY_READING!r}")
    reference = option("--reference FILE", "reference=FILE")
    also = first_of([f"'{e.name}' as {e.reading} ({e.beyond})" for e in rest], 3)
    sizes = " and ".join(sorted({*map(str, first.sizes)}))
    if first in windows:
        one, more = _WINDOW if first.is_mask else _UNMASKED, ""
    else:
        one, more = (
            f"one size of {sizes} does not decide how it continues",
            f", or {every} for all readings as shown",
        )
    if windows and first not in windows:
        more += f" (not of '{windows[0].name}', which may belong to a sliding window)"
    return (
        f"{first.what} {first.words}, but {one}; "
        f"read as {first.reading} it is {first.beyond} beyond the file: if that is "
        f"right, pass {accept}{others}{more}, or compare with an "
        f"export of a larger size ({reference})" + (f"; also {also}" if also else "")
    )
