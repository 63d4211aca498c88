"""Open sizes as expressions, their values in the file, and axes that join several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.size_polynomials import compound, terms
from onnxgrad.ir.types import Dim
from onnxgrad.verify.feeds.dims import evaluate

_OF_TWO = {"//": algebra.divide, "max": algebra.maximum, "min": algebra.minimum}
# values of the file's own symbols for evaluation; primes are seldom equal by chance
_OTHERS = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079)


class Fixed(Refused):
    """A size cannot be open here, even if other numbers follow it."""


class Expressions:
    """The open sizes of one program.

    values: the size in the file of each opened symbol.
    others: the symbols that the file already had.
    """

    def __init__(self, values: Mapping[str, int], others: Sequence[str]) -> None:
        self.opened = dict(values)
        self.values = {**values}
        for i, name in enumerate(others):
            self.values[name] = _OTHERS[i % len(_OTHERS)] + 1000 * i
        self._joined: dict[tuple[Size, ...], str] = {}
        self._parts: dict[str, tuple[Size, ...]] = {}

    def at(self, size: Dim, values: Mapping[str, int] | None = None) -> int | None:
        """Returns the value of a size in the file, or for the given values of symbols.

        Returns None if the size has no formula.
        """
        if isinstance(size, int) or size is None:
            return size
        plain = self.plain(size)
        known = self.values if values is None else {**self.values, **values}
        if plain is None or not algebra.symbols(plain) <= known.keys():
            return None
        return evaluate(plain, known)

    def is_open(self, size: Dim) -> bool:
        """Whether a size depends on an opened size."""
        plain = self.plain(size)
        return isinstance(plain, str) and not algebra.symbols(plain).isdisjoint(self.opened)

    def known(self, size: Dim) -> bool:
        """Whether a size is a number or an expression of sizes of inputs."""
        plain = self.plain(size)
        return plain is not None and algebra.symbols(plain) <= self.values.keys()

    # ---- axes that join several open sizes -------------------------------------------------------

    def joined(self, parts: Iterable[Size]) -> Size:
        """Returns the size of an axis that joins other sizes; `split` undoes this."""
        several = tuple(p for p in parts if p != 1)
        if sum(isinstance(p, str) for p in several) < 2:
            found = algebra.product(several)
            if found is None:
                raise Refused("a size in it has no formula")
            return found
        if several not in self._joined:
            name = f"joined_axes_{len(self._joined)}"
            self._joined[several] = name
            self._parts[name] = several
        return self._joined[several]

    def split(self, size: Size) -> tuple[Size, ...]:
        """Returns the sizes that an axis joins, in order."""
        return self._parts.get(size, (size,)) if isinstance(size, str) else (size,)

    def parts(self, size: Size) -> list[str]:
        """Returns the open sizes that are factors of a size."""
        plain = self.plain(size)
        products = [*terms(plain)] if isinstance(plain, str) else []
        found = [*self.split(size), *(products[0] if len(products) == 1 else ())]
        return [p for p in dict.fromkeys(found) if isinstance(p, str) and self.is_open(p)]

    def plain(self, size: Dim) -> Dim:
        """Returns a size with the names of joined axes replaced by products."""
        if not isinstance(size, str) or algebra.symbols(size).isdisjoint(self._parts):
            return size
        total: Dim = 0
        for atoms, factor in terms(size).items():
            total = algebra.add(total, algebra.product([factor, *map(self._atom, atoms)]))
        return total

    def _atom(self, atom: str) -> Dim:
        if atom in self._parts:
            return algebra.product(map(self.plain, self._parts[atom]))
        parts = compound(atom)
        if parts is None:
            return atom
        return _OF_TWO[parts[0]](self.plain(parts[1]), self.plain(parts[2]))

    def same(self, a: Dim, b: Dim) -> bool:
        """Whether two sizes are equal in every run."""
        return a == b or (a is not None and self.plain(a) == self.plain(b))
