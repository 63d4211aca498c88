"""What bindings of constants amount to, computed by onnxruntime in a child process."""

from __future__ import annotations

import time

import onnx
from onnx import numpy_helper

from onnxgrad.folding.evaluate import product_of_zeros, truncated
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import Var
from onnxgrad.verify.running.process import RunFailed
from onnxgrad.verify.running.run import run
from onnxgrad.verify.values import Value

# the newest IR version that every onnxruntime we support reads; it has all dtypes
_IR = 10


def values_of(
    block: BindingBlock, folded: list[Binding], wanted: list[Binding], deadline: float
) -> list[tuple[Binding, Value]]:
    """The wanted results, by `deadline` (of time.monotonic); without those that make onnxruntime
    fail, hang or die.

    `folded`: the wanted bindings of `block` and what they depend on. Raises RuntimeMissing without
    onnxruntime.
    """
    known = {
        b.out.name: array
        for b in wanted
        for array in (truncated(b), product_of_zeros(b))
        if array is not None
    }
    asked = [b for b in wanted if b.out.name not in known]
    seconds = deadline - time.monotonic()
    if asked and seconds <= 0:
        return []
    try:
        values: dict[str, Value] = dict(known)
        if asked:
            model = _model_of(block, folded, asked)
            values.update(run(model, {}, optimize=False, timeout=seconds))
        return [(b, values[b.out.name]) for b in wanted]
    except RunFailed:
        if len(wanted) == 1:
            return []  # it would fail for the user as well; folding is not the place to say so
    half = len(wanted) // 2
    return [
        *values_of(block, folded, wanted[:half], deadline),
        *values_of(block, folded, wanted[half:], deadline),
    ]


def _model_of(
    block: BindingBlock, bindings: list[Binding], wanted: list[Binding]
) -> onnx.ModelProto:
    """The wanted bindings and what they need, as a model without inputs."""
    graph = onnx.GraphProto(name="constants")
    bindings = _needed(bindings, wanted)
    constants: dict[Var, None] = {}
    for b in bindings:
        graph.node.append(b.to_node())
        constants.update((v, None) for v in b.inputs if v is not None and v.is_constant)
    for v in constants:
        array = v.const
        if array is not None:
            graph.initializer.append(numpy_helper.from_array(array, v.name))
    for b in wanted:
        graph.output.add(name=b.out.name).type.tensor_type.elem_type = b.out.dtype
    # folded operators are of the default domain
    imports = [onnx.helper.make_opsetid("", block.opsets[""])]
    return onnx.ModelProto(ir_version=_IR, graph=graph, opset_import=imports)


def _needed(bindings: list[Binding], wanted: list[Binding]) -> list[Binding]:
    """Of `bindings`, in their order, those that `wanted` depend on, and these themselves."""
    needed = set(wanted)
    for b in reversed(bindings):
        if b in needed:
            needed.update(
                v.definition for v in b.inputs if v is not None and v.definition is not None
            )
    return [b for b in bindings if b in needed]
