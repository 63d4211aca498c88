"""The stable topological schedule: the one place where a cycle is reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from onnxgrad.errors import InternalError

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock


def topological_order(block: BindingBlock) -> list[Binding]:
    """The block's bindings, operands before readers, in the present order wherever that is legal.

    Depth-first post-order from each binding in turn, without recursion. Raises InternalError that
    prints the bindings of a cycle.
    """
    order: list[Binding] = []
    done: dict[Binding, bool] = {}  # False: on the path being explored, True: placed
    for root in block.bindings:
        if root in done:
            continue
        path: list[tuple[Binding, Iterator[Binding]]] = [(root, _operands(root, block))]
        done[root] = False
        while path:
            binding, operands = path[-1]
            for needed in operands:
                state = done.get(needed)
                if state is None:
                    done[needed] = False
                    path.append((needed, _operands(needed, block)))
                    break
                if state is False:
                    raise InternalError(_cycle_message([b for b, _ in path], needed))
            else:
                path.pop()
                done[binding] = True
                order.append(binding)
    return order


def is_ordered(block: BindingBlock) -> bool:
    """Whether every binding stands behind what it reads, which is so nearly always."""
    seen: set[Binding | None] = {None}
    for b in block.bindings:
        for v in b.reads() if b.blocks else b.inputs:
            if v is not None and v.definition not in seen and v.block is block:
                return False
        seen.add(b)
    return True


def depends_on(reader: Binding, sources: set[Binding], beside: Collection[Binding] = ()) -> bool:
    """Whether `reader` reads, directly or through other bindings of its block, a result of one of
    `sources`.

    `beside`: bindings known to depend on none of them. What these read does not either, so it is
    climbed side by side with what `reader` reads: the search ends where they have met, mostly a few
    bindings above, and not at the inputs.
    """
    block = reader.block
    seen, work = {reader}, deque([reader])
    free, above = set(beside), deque(beside)
    while work:
        if above:
            more = [b for b in _operands(above.popleft(), block) if b not in free]
            free.update(more)
            above.extend(more)
        binding = work.popleft()
        if binding in free:
            continue
        for needed in _operands(binding, block):
            if needed in sources:
                return True
            if needed not in seen:
                seen.add(needed)
                work.append(needed)
    return False


def _operands(binding: Binding, block: BindingBlock) -> Iterator[Binding]:
    for v in binding.reads() if binding.blocks else binding.inputs:
        if v is not None and v.block is block and v.definition is not None:
            yield v.definition


def _cycle_message(path: list[Binding], closing: Binding) -> str:
    cycle = path[path.index(closing) :]
    shown = " -> ".join(b.out.name for b in [*cycle[:8], closing])
    return f"the bindings form a cycle: {shown}; first: {closing}"
