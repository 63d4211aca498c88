"""Raising older models to the opset whose operators the gradient rules emit."""

from __future__ import annotations

import copy
import math

import numpy as np
import onnx
from onnx import ModelProto, TensorProto
from onnx.shape_inference import InferenceError
from onnx.version_converter import ConvertError

from onnxgrad.errors import InputError
from onnxgrad.grad.inlining import open_call, refuse_bomb
from onnxgrad.grad.opset.converter_gaps import (
    BATCHES_UNTIL,
    put_back_sparse,
    refuse_batched_scans,
    restore_batches,
    separate_names,
    take_sparse,
)
from onnxgrad.grad.registry import rule_of
from onnxgrad.ir import domains
from onnxgrad.ir.attributes import is_of_onnxruntime
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.function_bodies import called, functions_callees_first
from onnxgrad.ir.identity_barrier import insert_barrier, remove_barrier
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.opset_changes import changes_meaning
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.protobufs import copy_of, every_node
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.external_data import load_weights
from onnxgrad.ir.types import numpy_dtype, type_to_proto
from onnxgrad.passes.convert_opset import OLDEST, convert, hide_weight_inputs

# from 18 on, axes of reductions are operands; since 16, ScatterND and ScatterElements can add
OPSET = 18
# onnxruntime accepts opset 18 with an older IR version; node metadata needs 10, but is optional
_IR_VERSION = 8
# onnx.version_converter does not convert PRelu's slopes, which were one per channel before
_SLOPES_BROADCAST = 7
# domain that hides operators which onnx.version_converter does not know and no opset changed
_HIDDEN = "onnxgrad.hidden"
# external weights of at least this many elements stay in their file; conversions depend on smaller
# tensors only
_LARGE = 1 << 16


def raise_opset(program: Program) -> tuple[Program, str]:
    """Returns the program at opset 18 or above, and a note if it was converted, else "".

    Nodes from opset 7 on are raised in place by `laws.raise_opset`. onnx.version_converter raises
    older ones and Scans with a batch axis. Names, metadata and doc strings of nodes that its result
    still has are carried over. Raises InputError if the model cannot be converted.
    """
    hide_weight_inputs(program)
    # without an operator of the default domain any opset will do
    program.opsets.setdefault("", OPSET)
    before = program.opset
    if before >= OPSET:
        return program, ""
    has_scan = any(b.is_op("Scan") for block in program.blocks() for b in block.bindings)
    if before < OLDEST or (before <= BATCHES_UNTIL and has_scan):
        raised, opened = _by_onnx(program)
    else:
        raised, opened = program, open_changed(program, OPSET)
        convert(program, OPSET)
    note = f"opset raised from {before} to {OPSET}: the gradient needs its operators"
    if opened:
        note += f"; calls of {', '.join(opened)} are inlined, because their operators changed"
    return raised, note


def _by_onnx(program: Program) -> tuple[Program, list[str]]:
    """Returns the program as onnx.version_converter raises it, and the names of the functions
    whose calls were inlined before.
    """
    batched = program.opset <= BATCHES_UNTIL
    if batched:
        refuse_batched_scans(program)
    opened = open_changed(program, OPSET)
    source = to_proto(program)
    large = _take_large_weights(source)
    converted = _converted(program, source)
    if batched:
        restore_batches(source, converted)
    separate_names(converted.graph)
    carry_functions(source, converted, OPSET)
    _carry_over(source, converted)
    _put_back_weights(large, converted)
    raised = load(converted)
    if program.opset < _SLOPES_BROADCAST:
        _align_slopes(raised)
    _type_numbers(raised)
    raised.folder, raised.path = program.folder, program.path
    raised.digests = program.digests
    return raised, opened


def _converted(program: Program, source: ModelProto) -> ModelProto:
    """Converts `source` by onnx.version_converter, without functions and hidden operators.

    Loads the weights of `source`, and leaves the operators of onnxruntime hidden in it. Raises
    InputError if the converter fails.
    """
    sparse = take_sparse(source.graph, _HIDDEN)
    load_weights(source, program.folder, program.digests)
    for node in every_node(source.graph.node):
        domains.respell(node)
        if not node.domain and is_of_onnxruntime(node.op_type, program.opset):
            node.domain = _HIDDEN
    source.opset_import.add(domain=_HIDDEN, version=1)
    bare = without_functions(program, source) if source.functions else source
    try:
        converted = onnx.version_converter.convert_version(bare, OPSET)
    except (RuntimeError, ValueError, ConvertError, InferenceError) as e:
        reason = str(e).strip().splitlines()[0]
        raise InputError(
            f"the model's opset {program.opset} is below {OPSET} and onnx.version_converter cannot "
            f"raise it ({reason}): export it again at a newer opset"
        ) from e
    put_back_sparse(sparse, converted.graph, _HIDDEN)
    for node in every_node(converted.graph.node):
        if node.domain == _HIDDEN:
            node.domain = ""
    return converted


def _take_large_weights(model: ModelProto) -> list[tuple[TensorProto, bool]]:
    """Removes large external weights from the main graph, so that they need not fit into memory.

    No conversion depends on them. The bool of each weight is true if an input stands for it that
    the graph did not have before.
    """
    graph, large = model.graph, []
    inputs = {i.name for i in graph.input}
    for i in reversed(range(len(graph.initializer))):
        t = copy.copy(graph.initializer[i])
        if t.data_location == TensorProto.EXTERNAL and math.prod(t.dims) > _LARGE:
            large.append((t, t.name not in inputs))
            del graph.initializer[i]
    graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t, stands in large
        if stands
    )
    return large[::-1]


def _put_back_weights(large: list[tuple[TensorProto, bool]], model: ModelProto) -> None:
    """Restores the weights that `_take_large_weights` removed in the converted model."""
    stand = {t.name for t, stands in large if stands}
    for i in reversed(range(len(model.graph.input))):
        if model.graph.input[i].name in stand:
            del model.graph.input[i]
    model.graph.initializer.extend(t for t, _ in large)


def _align_slopes(program: Program) -> None:
    """PRelu(x, slope): reshapes one slope per channel along axis 1 of x, because the newer operator
    broadcasts from the last axis.

    Raises InputError if the ranks are not known.
    """
    for block in program.blocks():
        for b in [b for b in block.bindings if b.is_op("PRelu")]:
            x, slope = b.inputs
            if x is None or slope is None or slope.shape in ((), (1,)):
                continue
            if x.rank is None or slope.rank is None:
                raise InputError(
                    f"the ranks of '{b}' are not known, so its slopes cannot be raised from opset 6"
                )
            if slope.rank == 1 and x.rank > 2:
                with emitting(block, sources=(b,), made_by="raise_opset"):
                    block.set_operand(b, 1, op.Unsqueeze(slope, list(range(1, x.rank - 1))))


# operands that were attributes; onnx.version_converter writes them in float32 whatever the dtype of
# the model
_NUMBERS = {"Clip": (1, 2), "Pad": (2,)}


def _type_numbers(program: Program) -> None:
    """Casts bounds and fill values to the dtype of the tensor that they bound or fill."""
    for block in program.blocks():
        for b in [b for b in block.bindings if b.domain == "" and b.op in _NUMBERS]:
            x = b.inputs[0]
            for i in _NUMBERS[b.op]:
                number = b.operand(i)
                array = None if number is None else number.const
                if (
                    x is None
                    or number is None
                    or array is None
                    or not x.dtype
                    or number.dtype == x.dtype
                ):
                    continue
                # Clip's default bounds are float32's largest, infinite in a narrower dtype
                with (
                    emitting(block, sources=(b,), made_by="raise_opset"),
                    np.errstate(over="ignore"),
                ):
                    block.set_operand(b, i, constant(array.astype(numpy_dtype(x.dtype))))


def _carry_over(source: ModelProto, converted: ModelProto) -> None:
    converted.ir_version = max(source.ir_version, _IR_VERSION)
    del converted.opset_import[:]
    for entry in [e for e in source.opset_import if e.domain != _HIDDEN]:
        version = OPSET if domains.is_default(entry.domain) else entry.version
        converted.opset_import.add(domain=entry.domain, version=version)
    for old, new in ((source, converted), (source.graph, converted.graph)):
        new.doc_string = old.doc_string
        del new.metadata_props[:]
        new.metadata_props.extend(old.metadata_props)
    before = {name: node for node in source.graph.node for name in node.output if name}
    for node in converted.graph.node:
        origin = next((before[name] for name in node.output if name in before), None)
        if origin is not None and not node.metadata_props:
            node.metadata_props.extend(origin.metadata_props)
            node.doc_string = node.doc_string or origin.doc_string


# ---- local functions: onnx.version_converter drops them all --------------------------------------
#
# A function whose operators mean the same at the newer opset stays unchanged and imports that
# opset. A function with an operator that changed is inlined first: its calls have the types that
# conversion depends on.


def open_changed(program: Program, opset: int) -> list[str]:
    """Inlines the calls of functions whose meaning would change at `opset`.

    Returns the names of these functions. Raises InputError if one has a gradient rule, which the
    inlined call would not use, and if calls double the graph too often.
    """
    changed: set[FunctionKey] = set()
    for key in functions_callees_first(program):
        bindings = program.functions[key].walk()
        if any(called(b) in changed or changes_meaning(b, opset) is not None for b in bindings):
            changed.add(key)
    if not changed:
        return []
    given = set(program.names)
    while calls := [b for b in program.main.walk() if called(b) in changed]:
        refuse_bomb(program.main, calls)
        for b in calls:
            _open(b, given, opset)
    for block in {b.block for b in program.main.walk()}:
        block.schedule()
    for key in changed:
        del program.functions[key]
    return sorted(name for _, name, _ in changed)


def _open(b: Binding, given: set[str], opset: int) -> None:
    """Inlines one call. Its results keep their names if these are in `given`."""
    rule = rule_of(b)
    if rule is not None and rule.kind != "body":
        raise InputError(
            f"function {b.domain}::{b.op} is written for an opset below {opset}, and cannot keep "
            "its gradient rule when the model is raised to it: export the model again at opset "
            f"{opset} or above"
        )
    anchors = [insert_barrier(v) for v in list(b.outputs) if v is not None]
    open_call(b)
    for identity in anchors:
        if (
            (v := identity.inputs[0]) is not None
            and v.definition is not None
            and v.name not in given
        ):
            remove_barrier(identity, given)


def without_functions(program: Program, source: ModelProto) -> ModelProto:
    """Returns `source` without functions, but with the types of their results.

    onnx would infer the types of functions anew for each call.
    """
    bare = copy_of(source)
    del bare.functions[:]
    declared = {v.name for v in (*bare.graph.value_info, *bare.graph.output)}
    for b in program.main.bindings:
        for v in b.outputs if called(b) is not None else ():
            if v is not None and v.type is not None and v.name not in declared:
                bare.graph.value_info.add(name=v.name, type=type_to_proto(v.type))
    return bare


def carry_functions(source: ModelProto, converted: ModelProto, opset: int) -> None:
    """Copies the remaining functions to `converted`, importing `opset`, and restores the parts of
    non-ONNX nodes that conversion drops.
    """
    for f in source.functions:
        raised = copy_of(f)
        for entry in raised.opset_import:
            if domains.is_default(entry.domain):
                entry.version = max(entry.version, opset)
        converted.functions.append(raised)
    before = {
        n.output[0]: n
        for n in every_node(source.graph.node)
        if not domains.is_default(n.domain) and n.output
    }
    for node in every_node(converted.graph.node):
        old = before.get(node.output[0]) if node.output else None
        if old is not None and (old.domain, old.op_type) == (node.domain, node.op_type):
            node.overload = old.overload
