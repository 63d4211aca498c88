"""Constant folding: numpy where it is exact to the bit, onnxruntime in a child process for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxgrad.ir import symbolic
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.ops import RANDOM_OPS, constant, emitting
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, element_count, numpy_dtype
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.passes.evaluate import MOVES, evaluate
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.run import RunFailed, run

# evaluated once it may differ from what a run would give, or it hides a structure that the runtime looks for
_NEVER = RANDOM_OPS | {
    "Constant",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Identity",
    "If",
    "Loop",
    "QuantizeLinear",
    "Scan",
    "SequenceMap",
}


@register
@dataclass(frozen=True)
class FoldConstant(Pass):
    """f(c) = its value, for constants c: what depends on constants only is computed now.

    `max_growth`: how many bytes the file may grow by, all foldings together (weights that go away count against it).
    Never folded: random draws, control flow, (de)quantization, sequences, results of unknown size.
    """

    name: ClassVar[str] = "fold-constant"
    max_growth: int = 1 << 20

    def run(self, program: Program, trace: Trace) -> None:
        """Fold everywhere. A binding that onnxruntime cannot evaluate stays."""
        budget = _Budget(self.max_growth)
        for root in roots(program):
            for block in [root, *(nested for b in root.walk() for nested in b.blocks.values())]:
                _fold_exactly(block, budget, trace)
                _fold_in_onnxruntime(block, budget, trace)


class _Budget:
    def __init__(self, left: int) -> None:
        self.left = left

    def pays(self, growth: int) -> bool:
        """Whether a folding that adds `growth` bytes is allowed; if so it is charged."""
        if growth > max(self.left, 0):
            return False
        self.left -= max(growth, 0)
        return True


def _fold_exactly(block: BindingBlock, budget: _Budget, trace: Trace) -> None:
    block.schedule()
    for b in list(block.bindings):
        if trace.stopped:
            return
        if not b.is_live or not _foldable(b):
            continue
        array = _known_sizes(b.out)
        if array is None and _constant_operands(b) and _size(b) is not None and budget.left >= _growth(b):
            array = evaluate(b)
        if array is not None and budget.pays(_growth(b)):
            _replace(b, array, trace)


def _known_sizes(out: Var) -> Array | None:
    """The value of shape arithmetic whose sizes are all known, though the tensor they belong to is not."""
    if out.dtype != TensorProto.INT64 or out.rank not in (0, 1):
        return None
    sizes = symbolic.sizes(out)
    if sizes is None or any(not isinstance(d, int) for d in sizes):
        return None
    return np.array(sizes, np.int64).reshape([len(sizes)] if out.rank else [])


def _fold_in_onnxruntime(block: BindingBlock, budget: _Budget, trace: Trace) -> None:
    folded: dict[Binding, None] = {}
    known: set[Var] = set()
    for b in block.bindings:
        operands = [v for v in b.inputs if v is not None]
        if _foldable(b) and operands and all(v.is_constant or v in known for v in operands) and _size(b) is not None:
            folded[b] = None
            known.update(v for v in b.outputs if v is not None)
    wanted = [b for b in folded if any(u not in folded for u in b.out.users) and len(b.outputs) == 1]
    wanted = [b for b in wanted if budget.pays(_growth(b))]
    if not wanted or trace.stopped:
        return
    try:
        values = run(_model_of(block, list(folded), wanted), {}, optimize=False)
    except RunFailed:
        return  # it would fail, or hang, for the user as well; folding is not the place to say so
    for b in wanted:
        value = values[b.out.name]
        if isinstance(value, np.ndarray) and not trace.stopped:
            _replace(b, value, trace)


def _model_of(block: BindingBlock, bindings: list[Binding], wanted: list[Binding]) -> onnx.ModelProto:
    """The folded bindings alone, as a model without inputs."""
    graph = onnx.GraphProto(name="constants")
    constants: dict[Var, None] = {}
    for b in bindings:
        node = graph.node.add()
        node.CopyFrom(b.node)
        node.input[:] = ["" if v is None else v.name for v in b.inputs]
        node.output[:] = ["" if v is None else v.name for v in b.outputs]
        constants.update((v, None) for v in b.inputs if v is not None and v.is_constant)
    for v in constants:
        array = v.const
        if array is not None:
            graph.initializer.append(numpy_helper.from_array(array, v.name))
    for b in wanted:
        graph.output.add(name=b.out.name).type.tensor_type.elem_type = b.out.dtype
    imports = [onnx.helper.make_opsetid(d, v) for d, v in block.opsets.items()]
    return onnx.ModelProto(ir_version=min(block.program.ir_version, 10), graph=graph, opset_import=imports)


def _foldable(b: Binding) -> bool:
    return (
        b.domain == ""
        and b.op not in _NEVER
        and not b.blocks
        and not b.has_refs
        and len(b.outputs) == 1
        and b.outputs[0] is not None
        and not b.outputs[0].returned
        and bool(b.outputs[0].dtype)
    )


def _constant_operands(b: Binding) -> bool:
    return all(v is None or v.is_constant for v in b.inputs)


def _size(b: Binding) -> int | None:
    count = element_count(b.out.shape)
    return None if count is None or b.out.dtype == TensorProto.STRING else count * numpy_dtype(b.out.dtype).itemsize


def _growth(b: Binding) -> int:
    """Bytes the file gains: the result, less the constants that nothing else reads."""
    dying = 0
    for v in {v for v in b.inputs if v is not None and v.initializer is not None and v.use_count == 1}:
        dying += (element_count(v.shape) or 0) * numpy_dtype(v.dtype).itemsize if v.dtype else 0
    return (_size(b) or 0) - dying


def _replace(b: Binding, array: Array, trace: Trace) -> None:
    trace.of("fold_constant").applied += 1
    trace.rounded = trace.rounded or (array.dtype.kind not in "biu" and b.op not in MOVES)
    trace.fired("fold_constant", str(b))
    with emitting(b.block, sources=[b], made_by="fold_constant"):
        b.block.replace(b.out, constant(array, name=f"{b.out.name}_folded"))
    b.block.remove_unused([b])
