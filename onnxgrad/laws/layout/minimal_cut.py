"""The cheapest way to divide a network in two: the minimal cut, by maximal flow (Dinic, 1970)."""

from __future__ import annotations

from collections import deque


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
        """What it costs when `a` is on the source's side and `b` on the sink's."""
        for start, end, room in ((a, b, capacity), (b, a, 0.0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._left.append(room)

    def cut(self) -> tuple[float, set[int]]:
        """The cost of the cheapest division, and the nodes on the sink's side of that with the
        fewest of them.
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
        """How far each node is from the source along edges with room; -1: not reached."""
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
        """Fill paths that go one level down at each step until there is none; what flowed."""
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
