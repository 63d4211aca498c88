"""Which new values may be written over the old ones: where every reader of the old has run before.

A runtime writes an output as soon as its node runs. An input may share the output's memory if each
binding that reads it, also through bindings that onnxruntime lets share memory with their operand,
comes before the output's own in every order, which only the edges guarantee: a weight's update may
run before the same layer's input adjoint has read the weight. The output's own binding may read it
where it works element by element on operands of one shape.
"""

from __future__ import annotations

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var

# their results may be their operands' memory, or onnxruntime may let their readers read the operand
# instead
_ALIASES = frozenset({
    "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout", "Cast", "Optional",
    "Split", "Transpose", "Expand", "Slice", "Concat", "Pad", "Gather",
})  # fmt: skip
_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Where", "Max", "Min", "Neg", "Abs", "Sqrt", "Sign", "Pow"}
)


def may_be_overwritten(block: BindingBlock, old: Var, new: Var) -> bool:
    """Whether the memory of the input `old` may become that of the output `new`."""
    own = new.definition
    if own is None or old.type != new.type or not is_static(old.shape) or old.returned:
        return False
    readers = _readers(old)
    before = _ancestors(own)
    for b in readers:
        if b is own:
            if b.op not in _ELEMENTWISE or any(
                v is not None and v.shape not in (old.shape, ()) for v in b.inputs
            ):
                return False
        elif b not in before or b.block is not block:
            return False
    return True


def _readers(old: Var) -> set[Binding]:
    """Who reads the value's memory, in nested blocks too."""
    found: set[Binding] = set()
    todo = [old]
    while todo:
        v = todo.pop()
        for b in v.users:
            if b in found:
                continue
            found.add(b)
            if b.op in _ALIASES or b.blocks:
                todo += [o for o in b.outputs if o is not None]
    return found


def _ancestors(b: Binding) -> set[Binding]:
    found: set[Binding] = set()
    todo = [b]
    while todo:
        for v in todo.pop().reads():
            if v.definition is not None and v.definition not in found:
                found.add(v.definition)
                todo.append(v.definition)
    return found
