"""Stable topological orders of bindings and functions. A cycle is an error here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from onnxgrad.errors import InternalError

Node = TypeVar("Node", bound=Hashable)
_NAMED = 8  # nodes of a cycle in a message


def topological_order(
    nodes: Iterable[Node],
    operands: Callable[[Node], Iterator[Node]],
    name: Callable[[Node], str],
) -> list[Node]:
    """Returns the nodes, operands before readers, in the present order wherever that is legal.

    Depth-first post-order from each node in turn, without recursion. Raises InternalError that
    names the nodes of a cycle.
    """
    order: list[Node] = []
    done: dict[Node, bool] = {}  # False: on the path being explored, True: placed
    for root in nodes:
        if root in done:
            continue
        path: list[tuple[Node, Iterator[Node]]] = [(root, operands(root))]
        done[root] = False
        while path:
            node, rest = path[-1]
            for needed in rest:
                state = done.get(needed)
                if state is None:
                    done[needed] = False
                    path.append((needed, operands(needed)))
                    break
                if state is False:
                    cycle = [n for n, _ in path]
                    shown = [*cycle[cycle.index(needed) :][:_NAMED], needed]
                    raise InternalError(
                        f"the bindings form a cycle: {' -> '.join(map(name, shown))}; "
                        f"first: {needed}"
                    )
            else:
                path.pop()
                done[node] = True
                order.append(node)
    return order


def callees_first(calls: Mapping[Node, Iterable[Node]]) -> list[Node]:
    """Returns the functions, given what each calls, each after those that it calls; functions on a
    cycle are left out.
    """
    waiting = {key: {c for c in called if c in calls} for key, called in calls.items()}
    callers: dict[Node, list[Node]] = {}
    for key, needed in waiting.items():
        for c in needed:
            callers.setdefault(c, []).append(key)
    order = [key for key, needed in waiting.items() if not needed]
    for key in order:  # grows during the walk
        for caller in callers.get(key, ()):
            waiting[caller].discard(key)
            if not waiting[caller]:
                order.append(caller)
    return order
