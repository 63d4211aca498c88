"""Chooses the bindings of a block that should compute in another order of axes, so that the fewest
elements are transposed. The choice is a minimal cut (Dinic, 1970).

Each permeable binding computes in the present order or in the other one. A value that is computed
in one order and read in the other costs its elements, once. An opaque binding computes and reads
values in the present order; a Transpose computes or reads them in the other. The choice with the
least cost is a minimal cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from math import inf, prod

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import Shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.permeable import Moved, Perm, is_free, permeable


class Network:
    """Nodes 0 (source), 1 (sink), 2, ... and edges with a capacity."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._left: list[float] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: float) -> None:
        """An edge that is cut if `a` is on the source's side and `b` on the sink's."""
        for start, end, room in ((a, b, capacity), (b, a, 0.0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._left.append(room)

    def cut(self) -> tuple[float, set[int]]:
        """Returns the cost of a minimal cut, and the nodes on the sink's side: the fewest, if there
        are several minimal cuts.
        """
        total = 0.0
        while (level := self._levels())[1] >= 0:
            total += self._block(level)
        found, work = {1}, [1]
        while work:  # what still reaches the sink
            for e in self._edges[work.pop()]:
                if self._left[e ^ 1] > 0 and self._to[e] not in found:
                    found.add(self._to[e])
                    work.append(self._to[e])
        return total, found

    def _levels(self) -> list[int]:
        """Each node's distance from the source along edges with capacity left; -1: not reached."""
        level = [-1] * len(self._edges)
        level[0] = 0
        work = deque([0])
        while work:
            at = work.popleft()
            for e in self._edges[at]:
                if self._left[e] > 0 and level[self._to[e]] < 0:
                    level[self._to[e]] = level[at] + 1
                    work.append(self._to[e])
        return level

    def _block(self, level: list[int]) -> float:
        """Fills paths that go one level down at each step until none is left. Returns the flow."""
        total, next_edge, path = 0.0, [0] * len(self._edges), list[int]()
        while True:
            at = self._to[path[-1]] if path else 0
            if at == 1:
                room = min(self._left[e] for e in path)
                for e in path:
                    self._left[e] -= room
                    self._left[e ^ 1] += room
                total += room
                path = path[: next(i for i, e in enumerate(path) if self._left[e] <= 0)]
                continue
            if next_edge[at] < len(self._edges[at]):
                e = self._edges[at][next_edge[at]]
                if self._left[e] > 0 and level[self._to[e]] == level[at] + 1:
                    path.append(e)
                else:
                    next_edge[at] += 1
            elif path:
                path.pop()
                last = self._to[path[-1]] if path else 0
                next_edge[last] += 1
            else:
                return total


# sizes tried for every symbol: a choice has to pay at both
_ONE, _MANY = 1, 64
# the most bindings of a region: the search would take too long with more
_MOST = 20_000
_SOURCE, _SINK = 0, 1


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes this one."""
    return tuple(perm.index(i) for i in range(len(perm)))


@frozen
class Region:
    """Bindings that move to the order `perm`, and the transposed elements before and after, with
    _MANY for each symbol.
    """

    perm: Perm
    members: dict[Binding, Moved]
    before: int
    after: int


class Choice:
    """The network for one order in one block."""

    def __init__(self, block: BindingBlock, perm: Perm) -> None:
        self.block, self.perm, self.undo = block, perm, inverse(perm)
        self.moved = cache(self._moved)

    def _moved(self, b: Binding) -> Moved | None:
        found = permeable(b, self.perm) if b.block is self.block else None
        if found is None:
            return None
        values = [b.inputs[i] for i in found.data] + (b.outputs if found.carries else [])
        sized = all(v is not None and (_elements(v.shape, 1) or v.is_constant) for v in values)
        return found if sized else None

    def has_other(self, v: Var) -> bool:
        """Whether `v` is the result of a Transpose whose operand is `v` in the other order."""
        b = v.definition
        if b is None or not self._turns(b, self.undo) or b.inputs[0] is None:
            return False
        return self.perm != self.undo or not self._made_inside(b.inputs[0])

    def wants_other(self, b: Binding) -> bool:
        """Whether `b` is a Transpose whose result is its operand in the other order."""
        if not self._turns(b, self.perm) or b.inputs[0] is None:
            return False
        return self.perm != self.undo or self._made_inside(b.inputs[0])

    def _turns(self, b: Binding, perm: Perm) -> bool:
        known = b.block is self.block and b.is_op("Transpose") and not b.has_refs
        return known and b.attr("perm") == perm and bool(_elements(b.out.shape, 1))

    def _made_inside(self, v: Var) -> bool:
        found = None if v.definition is None else self.moved(v.definition)
        return found is not None and found.carries

    def region(self) -> Region | None:
        """The cheapest choice if it is cheaper than no change, else None."""
        members = self._connected()
        if not members or len(members) > _MOST:
            return None
        network = Network()
        node = {b: network.node() for b in members}
        values = list(self._values(members))
        for v in values:
            has, wants = self._ends(v, node.get)
            _join(network, has, wants, _elements(v.shape, _MANY))
        _, other = network.cut()
        chosen = {b: found for b, found in members.items() if node[b] in other}
        if not chosen or not self._pays(values, set(chosen), _ONE)[2]:
            return None
        before, after, pays = self._pays(values, set(chosen), _MANY)
        return Region(self.perm, chosen, before, after) if pays else None

    def _connected(self) -> dict[Binding, Moved]:
        """The permeable bindings that are connected by values with a Transpose of this order."""
        work: list[Binding] = []
        for b in self.block.bindings:
            if b.is_op("Transpose") and b.inputs[0] is not None:
                if self.wants_other(b):
                    work += self._around(b.inputs[0])
                if self.has_other(b.out):
                    work += self._around(b.out)
        found: dict[Binding, Moved] = {}
        while work and len(found) <= _MOST:
            b = work.pop()
            moved = self.moved(b)
            if moved is None or b in found:
                continue
            found[b] = moved
            for v in self._touching(b, moved):
                work += self._around(v)
        return found

    def _around(self, v: Var) -> list[Binding]:
        own = [] if v.definition is None or v.is_constant else [v.definition]
        return own + ([] if v.is_constant else list(v.users))

    def _touching(self, b: Binding, moved: Moved) -> Iterator[Var]:
        """The operands and results of `b` that are in the order in which it computes."""
        yield from dict.fromkeys(v for i in moved.data if (v := b.inputs[i]) is not None)
        if moved.carries:
            yield from (v for v in b.outputs if v is not None)

    def _values(self, members: dict[Binding, Moved]) -> Iterator[Var]:
        found = dict.fromkeys(v for b, m in members.items() for v in self._touching(b, m))
        yield from (v for v in found if not is_free(v, self.perm))

    def _ends(self, v: Var, side: Callable[[Binding], int | None]) -> tuple[int, set[int]]:
        """The network nodes of the binding that computes a value and of those that read it. Opaque
        bindings are the source, transposes the sink.
        """
        b = v.definition
        has = _SOURCE
        if b is not None and self.has_other(v):
            has = _SINK
        elif b is not None and (found := self.moved(b)) is not None and found.carries:
            has = side(b) or _SOURCE
        wants = {self._want(v, user, side) for user in v.users}
        return has, wants | ({_SOURCE} if v.returned else set())

    def _want(self, v: Var, user: Binding, side: Callable[[Binding], int | None]) -> int:
        if self.wants_other(user):
            return _SINK
        found = self.moved(user)
        if found is None:
            return _SOURCE
        read = [i for i, operand in enumerate(user.inputs) if operand is v]
        return (side(user) or _SOURCE) if set(read) <= set(found.data) else _SOURCE

    def _pays(self, values: list[Var], chosen: set[Binding], size: int) -> tuple[int, int, bool]:
        """Transposed elements without and with the choice, and whether these are fewer."""
        totals = []
        for moving in (set[Binding](), chosen):
            ends = (
                (v, self._ends(v, lambda b: _SINK if b in moving else _SOURCE))  # noqa: B023
                for v in values
            )
            totals.append(sum(_elements(v.shape, size) for v, (has, w) in ends if w - {has}))
        return totals[0], totals[1], totals[1] < totals[0]


def _join(network: Network, has: int, wants: set[int], cost: int) -> None:
    """Adds edges that cost `cost` once if any node of `wants` is on another side than `has`."""
    others = wants - {has}
    if not others:
        return
    late, early = network.node(), network.node()
    network.edge(has, late, cost)
    network.edge(early, has, cost)
    for want in others:
        network.edge(late, want, inf)
        network.edge(want, early, inf)


def _elements(shape: Shape | None, size: int) -> int:
    """The number of elements, with `size` for each symbol; 0 if a size is unknown."""
    if shape is None or any(d is None for d in shape):
        return 0
    return prod(d if isinstance(d, int) else size for d in shape)
