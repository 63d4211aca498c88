"""What the gradient of control flow keeps besides results: the tape of a Loop or Scan, and one
run of each body.
"""

from __future__ import annotations

from onnxgrad.grad.loop import state_types, typed_step
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.types import byte_count

# onnxruntime holds the steps of a tape one by one, then stacked
_TWICE = 2


def footprint(b: Binding) -> int | None:
    """Bytes that the gradient of `b` keeps or needs at once inside its bodies; None where a size is
    open.

    Sizes are open too where the number of steps is not known beforehand.
    """
    if not b.blocks:
        return 0
    if b.is_op("Loop"):
        return _loop(b)
    parts = [_values(block) for block in b.blocks.values()]
    if b.is_op("Scan"):
        parts.append(_scan_tape(b))
    return _total(parts)


def _loop(b: Binding) -> int | None:
    steps, body = b.inputs[0], b.blocks["body"]
    count = None if steps is None or steps.const is None else int(steps.const.reshape(()))
    initial = [v for v in b.inputs[2:] if v is not None]
    with emitting(b.block):
        types = state_types(body, initial)
        scratch, _ = typed_step(body, types)
        inside = _values(scratch)
        scratch.release()
    if count is None:
        return None
    tape = _total([byte_count(t) for t in types])
    return None if tape is None else _total([inside, _TWICE * count * (tape + 8), _captured(body)])


def _scan_tape(b: Binding) -> int | None:
    scanned = b.attr("num_scan_inputs")
    states = b.inputs[: len(b.inputs) - scanned]
    first = b.inputs[len(states)]
    axis = (b.attr("scan_input_axes") or [0])[0]
    steps = None if first is None or first.shape is None else first.shape[axis]
    tape = _total([None if v is None else byte_count(v.type) for v in states])
    if tape is None or not isinstance(steps, int):
        return None
    return _total([_TWICE * steps * tape, *(_captured(body) for body in b.blocks.values())])


def _captured(body: BindingBlock) -> int | None:
    """What a body reads from outside has a sum of adjoints, before and after a step."""
    once = _total([byte_count(v.type) for v in dict.fromkeys(body.captures())])
    return None if once is None else _TWICE * once


def _values(block: BindingBlock) -> int | None:
    """All that the block computes, once."""
    own = [byte_count(v.type) for b in block.bindings for v in b.outputs if v is not None]
    return _total([*own, *(footprint(b) for b in block.bindings)])


def _total(parts: list[int | None]) -> int | None:
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None
