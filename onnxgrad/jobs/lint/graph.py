"""Lints of the graph: values that decide nothing, types, and operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.domains import RANDOM, VIEWS, full_name
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType, is_static
from onnxgrad.ir.var import Var
from onnxgrad.jobs.lint.weights import NAMES, Model, listed
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.installed import runtime_limits
from onnxgrad.verify.running.kernel_versions import Kernels, has_kernel, is_built_from_others
from onnxgrad.verify.running.session import kernels
from onnxgrad.wording import first_of

# ---- values -------------------------------------------------------------------------------------

# operators whose result is zero if one of these operands is
_ANNIHILATED: Mapping[str, tuple[int, ...]] = {
    "Mul": (0, 1),
    "MatMul": (0, 1),
    "Gemm": (0, 1),
    "Conv": (1,),
    "ConvTranspose": (1,),
}


def dead_outputs(model: Model) -> Iterator[str]:
    """Yields the outputs that no input reaches."""
    main = model.program.main
    live = {v for v in main.inputs if not v.is_constant}
    for b in main.in_order():
        if any(v in live for v in _decisive(b, model)) or _draws(b):
            live.update(v for v in b.outputs if v is not None)
    dead = [v.name for v in main.outputs if v not in live]
    if dead and main.inputs:
        are = "is" if len(dead) == 1 else "are"
        yield f"{listed('output', dead)} {are} constant, whatever the inputs"


def _decisive(b: Binding, model: Model) -> list[Var]:
    """Returns the operands on which the results depend: none of a product with zeros, and not the
    elements of a tensor of which only a fixed size is read.
    """
    if b.domain == "" and b.op in _ANNIHILATED:
        for i in _ANNIHILATED[b.op]:
            v = b.operand(i)
            if v is not None and v in model.constants and model.constants[v].zero:
                return [v for v in b.inputs[2:] if v is not None]
    if b.domain == "" and b.op in ("Shape", "Size") and b.inputs and b.inputs[0] is not None:
        kind = b.inputs[0].type
        if isinstance(kind, TensorType) and kind.shape is not None and is_static(kind.shape):
            return []
    return [v for v in b.reads() if v is not None]


# operators -> operands that are useless if all zero: weights of products, and tables
_WEIGHTS: Mapping[str, tuple[int, ...]] = {
    **{op: places for op, places in _ANNIHILATED.items() if op != "Mul"},
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2)),
    "Gather": (0,),
}
_VIEWS = frozenset((*VIEWS, "Cast", "Transpose"))


def zero_weights(model: Model) -> Iterator[str]:
    """Yields the weights of products and the tables that are all zero."""
    zero = {v: v.name for v, n in model.constants.items() if n.zero and _is_matrix(v)}
    found: dict[str, None] = {}
    for b in model.bindings if zero else ():
        if b.domain == "" and b.op in _VIEWS and b.inputs[0] in zero and b.outputs[0] is not None:
            zero[b.outputs[0]] = zero[b.inputs[0]]
        for i in _WEIGHTS.get(b.op, ()) if b.domain == "" else ():
            v = b.operand(i)
            if v is not None and v in zero:
                found[zero[v]] = None
    if found:
        yield f"{listed('weight', found)} {'is' if len(found) == 1 else 'are'} all zero"


def _is_matrix(v: Var) -> bool:
    """Whether a constant has at least two axes, and more than one element."""
    if not isinstance(v.type, TensorType) or v.type.shape is None or not is_static(v.type.shape):
        return False
    return len(v.type.shape) > 1 and math.prod(map(int, v.type.shape)) > 1


def _draws(b: Binding) -> bool:
    """Whether the binding, or one of its nested blocks, draws random numbers."""
    return any(map(draws, (b, *(n for block in b.blocks.values() for n in block.walk()))))


def unread_inputs(model: Model) -> Iterator[str]:
    """Yields the inputs that nothing reads."""
    main = model.program.main
    names = [v.name for v in main.inputs if v.initializer is None and not v.use_count]
    if names:
        yield f"nothing reads {listed('input', names)}"


def float64_islands(model: Model) -> Iterator[str]:
    """Yields the nodes that compute in float64 in a model of narrower floats."""

    def computes(b: Binding) -> bool:
        wide = any(v is not None and v.dtype == TensorProto.DOUBLE for v in b.outputs)
        return wide and b.op not in ("Cast", "Constant", "Identity")

    main = model.program.main
    given = {v.dtype for v in main.inputs} | {v.dtype for v in main.initializers.values()}
    narrow = given & {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    if not narrow or TensorProto.DOUBLE in {v.dtype for v in main.inputs}:
        return
    found = [b for b in model.bindings if computes(b)]
    if found:
        yield f"float64 in a model of narrower floats: {_nodes(found)}"


def _nodes(found: list[Binding]) -> str:
    """Returns the first node, by operator and name, and the number of the others."""
    names = [f"{b.op} '{b.node.name or next(filter(None, b.node.output), '')}'" for b in found]
    return first_of(names, 1)


# ---- operators ----------------------------------------------------------------------------------


def training_mode(model: Model) -> Iterator[str]:
    """Yields the nodes in training mode."""
    found = [b for b in model.bindings if b.domain == "" and _trains(b)]
    if found:
        yield f"training mode, in which results depend on the batch or on chance: {_nodes(found)}"


# before this opset, a BatchNormalization with several results trains
_BY_ATTRIBUTE = 14


def _trains(b: Binding) -> bool:
    if b.op == "BatchNormalization":
        if b.version < _BY_ATTRIBUTE:
            return sum(v is not None for v in b.outputs) > 1
        return bool(b.attrs.get("training_mode") == 1)
    if b.op != "Dropout":
        return False
    ratio, mode = b.operand(1), b.operand(2)
    nothing = ratio is not None and ratio.const is not None and not ratio.const.any()
    return mode is not None and mode.const is not None and bool(mode.const.any()) and not nothing


def random_operators(model: Model) -> Iterator[str]:
    """Yields the nodes that draw random numbers."""
    found = [b for b in model.bindings if b.domain == "" and b.op in RANDOM]
    if found:
        yield f"random numbers, so two runs differ: {_nodes(found)}"


# every supported onnxruntime has kernels for the operators of this opset and before
_OLD = 21


def missing_kernels(model: Model) -> Iterator[str]:
    """Yields the operators that the installed onnxruntime cannot run."""
    program = model.program
    if program.opset <= _OLD:
        return
    try:
        newest = runtime_limits()[1]
        if program.opset > newest:
            yield f"opset {program.opset} is newer than the installed onnxruntime reads ({newest})"
            return
        known = kernels()
    except (InputError, RunFailed):  # no onnxruntime, or it does not start
        return
    lacking = [b for b in model.bindings if b.domain == "" and not _has_kernel(b, program, known)]
    if lacking:
        names = first_of(list(dict.fromkeys(full_name(b.domain, b.op) for b in lacking)), NAMES)
        yield f"the installed onnxruntime has no kernel for {names} of opset {program.opset}"


def _has_kernel(b: Binding, program: Program, known: Kernels) -> bool:
    """Whether onnxruntime has a kernel for an operator, of any type, or opens its function body."""
    return (
        attributes.schema(b.op, program.opset, b.domain) is None
        or b.op == "Constant"
        or (b.domain, b.op, b.node.overload) in program.functions
        or is_built_from_others(b.op, program.opset, b.domain)
        or has_kernel(known, b.op, program.opset, b.domain)
    )
