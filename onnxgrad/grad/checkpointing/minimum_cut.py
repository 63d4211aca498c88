"""Minimum cuts of a directed graph by Dinic's algorithm: level graphs and blocking flows.

(Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation",
1970.) Capacities are whole numbers, so that equal graphs have equal cuts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

UNLIMITED = 1 << 80  # more than any sum of finite capacities


class Network:
    """Edges with capacities between nodes of any hashable type."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # of each node; an edge and its reverse differ in bit 0
        self._heads: list[int] = []
        self._left: list[int] = []  # capacity that is left

    def add(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """Adds an edge."""
        for start, end, size in ((tail, head, capacity), (head, tail, 0)):
            self._edges[self._node(start)].append(len(self._heads))
            self._heads.append(self._node(end))
            self._left.append(size)

    def cut(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """Returns the nodes on the sink's side of the minimum cut that is nearest to the sink; None
        if every cut contains an edge of unlimited capacity.
        """
        first, last, total = self._node(source), self._node(sink), 0
        while (levels := self._levels(first, last))[last] >= 0:
            places = [0] * len(self._edges)
            while pushed := self._push(first, last, levels, places):
                total += pushed
                if total >= UNLIMITED:
                    return None
        return self._before(last)

    def _node(self, node: Hashable) -> int:
        if node not in self._number:
            self._number[node] = len(self._edges)
            self._edges.append([])
        return self._number[node]

    def _levels(self, first: int, last: int) -> list[int]:
        """Returns the distance of each node from the source, -1 if it cannot be reached."""
        levels = [-1] * len(self._edges)
        levels[first] = 0
        todo = deque([first])
        while todo and levels[last] < 0:
            node = todo.popleft()
            for edge in self._edges[node]:
                head = self._heads[edge]
                if levels[head] < 0 and self._left[edge] > 0:
                    levels[head] = levels[node] + 1
                    todo.append(head)
        return levels

    def _push(self, first: int, last: int, levels: list[int], places: list[int]) -> int:
        """Sends as much as fits along one path to the sink; 0 if there is no path."""
        path: list[int] = []
        node = first
        while node != last:
            edges = self._edges[node]
            while places[node] < len(edges):
                edge = edges[places[node]]
                if self._left[edge] > 0 and levels[self._heads[edge]] == levels[node] + 1:
                    break
                places[node] += 1
            if places[node] < len(edges):
                path.append(edges[places[node]])
                node = self._heads[path[-1]]
            elif not path:
                return 0
            else:  # a dead end
                node = self._heads[path.pop() ^ 1]
                places[node] += 1
        size = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= size
            self._left[edge ^ 1] += size
        return size

    def _before(self, last: int) -> set[Hashable]:
        """Returns the nodes from which capacity to the sink is left."""
        found, todo = {last}, [last]
        while todo:
            for edge in self._edges[todo.pop()]:
                tail = self._heads[edge]
                if self._left[edge ^ 1] > 0 and tail not in found:
                    found.add(tail)
                    todo.append(tail)
        return {node for node, i in self._number.items() if i in found}
