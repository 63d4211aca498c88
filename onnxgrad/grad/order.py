"""The order in which the bindings of a gradient graph stand, for the memory of a run.

onnxruntime walks depth-first from the graph's sinks, the last one first, and runs what each needs.
If the sinks stood in the order in which the backward walk made them, the first parameter's gradient
would run first, and with it the whole backward chain: every other weight gradient would wait,
holding its activation and its adjoint.
"""

from __future__ import annotations

from collections.abc import Collection

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock


def sinks_last(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Put emitted bindings that nothing reads at the end, those that can run earliest (the
    shallowest) last of all.
    """
    block.schedule()
    depth: dict[Binding, int] = {}
    for b in block.bindings:
        depth[b] = 1 + max(
            (depth.get(v.definition, 0) for v in b.reads() if v.definition is not None), default=0
        )
    sinks = [
        b
        for b in depth
        if b not in forward and not any(v is not None and v.users for v in b.outputs)
    ]
    moved = set(sinks)
    sinks.sort(key=lambda b: -depth[b])
    block.bindings = dict.fromkeys(b for b in depth if b not in moved) | dict.fromkeys(sinks)
