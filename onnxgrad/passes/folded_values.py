"""Helpers of constant folding: groups of bindings, their values computed by onnxruntime in a child
process, and the size of constants in a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container

import onnx
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.attributes import constant_value
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.traced_arrays import plain
from onnxgrad.ir.types import element_count, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import product_of_zeros, truncated
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run
from onnxgrad.verify.values import Value


def reads_constants(b: Binding, made: Container[Binding | None] = ()) -> bool:
    """Whether `b` reads nothing but constants and results of `made`."""
    for v in b.inputs:  # faster than `all`: every binding comes here, and most fail at once
        if v is not None and not v.is_constant and v.definition not in made:
            return False
    return True


def results_read(b: Binding) -> list[Var]:
    """The results that something reads."""
    return [v for v in b.outputs if v is not None and v.use_count]


def sharing_constants(
    block: BindingBlock, foldable: Callable[[Binding], bool]
) -> list[list[Binding]]:
    """The bindings that depend on constants only and are `foldable`, in order, grouped by the
    values they share.
    """
    leader: dict[Var, Var] = {}

    def find(v: Var) -> Var:
        while (above := leader.setdefault(v, v)) is not v:
            leader[v] = leader[above]
            v = above
        return v

    made: dict[Binding, None] = {}
    for b in block.bindings:
        if not reads_constants(b, made):
            continue
        values = [v for v in b.inputs if v is not None]
        if not values or not foldable(b):
            continue
        made[b] = None
        for v in values:
            leader[find(v)] = find(b.out)
    found: dict[Var, list[Binding]] = {}
    for b in made:
        found.setdefault(find(b.out), []).append(b)
    return list(found.values())


def growth(group: list[Binding], size: Callable[[Var], int]) -> int:
    """Bytes that the file gains if all of `group` is folded: the results that others read, less the
    constants that nothing else reads.
    """
    inside = set(group)
    ends = [
        b.out for b in group if b.out.returned or any(user not in inside for user in b.out.users)
    ]
    read = dict.fromkeys(
        v for b in group for v in b.inputs if v is not None and v.definition not in inside
    )
    dying = [
        v
        for v in read
        if not (v.returned or v.is_input) and all(user in inside for user in v.users)
    ]
    nodes: int = sum(b.node.ByteSize() for b in group)
    return sum(map(size, ends)) - sum(map(size, dying)) - nodes


# the newest IR version that every onnxruntime we support reads; it has all dtypes
_IR = 10


def values_of(
    block: BindingBlock, folded: list[Binding], wanted: list[Binding], deadline: float
) -> list[tuple[Binding, dict[Var, Value]]]:
    """The results of the `wanted` bindings that something reads, except those on which onnxruntime
    fails, hangs or crashes. `deadline`: latest time, by time.monotonic.

    `folded`: the wanted bindings of `block` and their dependencies. Raises RuntimeMissing if
    onnxruntime is not installed.
    """
    known = {
        b.out.name: array
        for b in wanted
        for array in (truncated(b), product_of_zeros(b))
        if array is not None
    }
    unknown = [b for b in wanted if b.outputs[0] is None or b.outputs[0].name not in known]
    seconds = deadline - time.monotonic()
    if unknown and seconds <= 0:
        return []
    try:
        values: dict[str, Value] = dict(known)
        if unknown:
            model = _model_of(block, folded, unknown)
            values |= run(model, {}, optimize=False, timeout=seconds)
        return [(b, {v: values[v.name] for v in results_read(b)}) for b in wanted]
    except RunFailed:
        if len(wanted) == 1:
            return []  # the model fails at this binding anyway; folding does not report it
    half = len(wanted) // 2
    return [
        *values_of(block, folded, wanted[:half], deadline),
        *values_of(block, folded, wanted[half:], deadline),
    ]


def _model_of(
    block: BindingBlock, bindings: list[Binding], wanted: list[Binding]
) -> onnx.ModelProto:
    """The wanted bindings and their dependencies, as a model without inputs."""
    graph = onnx.GraphProto(name="constants")
    bindings = _needed(bindings, wanted)
    constants: dict[Var, None] = {}
    for b in bindings:
        graph.node.append(b.to_node())
        constants.update((v, None) for v in b.inputs if v is not None and v.is_constant)
    for v in constants:
        array = plain(v.const)
        if array is not None:
            graph.initializer.append(numpy_helper.from_array(array, v.name))
    for v in (v for b in wanted for v in results_read(b)):
        graph.output.add(name=v.name).type.tensor_type.elem_type = v.dtype
    # folded operators are of the default domain
    imports = [onnx.helper.make_opsetid("", block.opsets[""])]
    return onnx.ModelProto(ir_version=_IR, graph=graph, opset_import=imports)


def _needed(bindings: list[Binding], wanted: list[Binding]) -> list[Binding]:
    """The `wanted` bindings and those of `bindings` that they depend on, in order."""
    needed = set(wanted)
    for b in reversed(bindings):
        if b in needed:
            needed.update(
                v.definition for v in b.inputs if v is not None and v.definition is not None
            )
    return [b for b in bindings if b in needed]


def constant_bytes(program: Program) -> int:
    """The bytes of all constants that something reads: initializers and Constant nodes, external
    data included.
    """
    total = 0
    for block in program.blocks():
        read = [v.initializer for v in block.initializers.values() if v.use_count]
        total += sum(_tensor_bytes(tensor) for tensor in read if tensor is not None)
        for b in block.bindings:
            if b.is_op("Constant") and not b.has_refs and b.out.use_count:
                value = constant_value(b.attrs)
                total += (
                    _tensor_bytes(value)
                    if isinstance(value, TensorProto)
                    else getattr(value, "nbytes", 0)
                )
    return total


def file_bytes(program: Program) -> int:
    """The bytes of the file that was read, its external data included."""
    return program.proto_bytes + outside_bytes(program)


def outside_bytes(program: Program) -> int:
    """The bytes of the constants with external data."""
    outside = [
        t
        for block in program.blocks()
        for v in block.initializers.values()
        if (t := v.initializer) is not None and t.data_location == TensorProto.EXTERNAL
    ]
    return sum(map(_tensor_bytes, outside))


def _tensor_bytes(tensor: TensorProto) -> int:
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return sum(map(len, tensor.string_data))
    return (element_count(tuple(tensor.dims)) or 0) * numpy_dtype(tensor.data_type).itemsize
