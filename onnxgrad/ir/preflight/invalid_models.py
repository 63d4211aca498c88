"""Errors of invalid models: onnx's full check, and axes that operands do not have.

Models are not fully validated up front because that is slow. If work on a model fails unexpectedly,
the model is checked in full, and the user sees the fault that was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import model_nodes
from onnxgrad.ir.type_inference.misinferred import ends_the_process
from onnxgrad.wording import counted

_LARGEST = 1 << 30  # serialised bytes; larger models are not passed to onnx's checker


@contextmanager
def blaming(proto: ModelProto) -> Iterator[None]:
    """Turns an unexpected exception into an InputError if `proto` is invalid; lets it pass if it is
    valid.
    """
    try:
        yield
    except Exception as error:  # an invalid model may make any line raise
        if isinstance(error, OnnxgradError) and not isinstance(error, InternalError):
            raise
        reason = fault_of(proto)
        if reason is None:
            raise
        raise InputError(f"this is not a valid ONNX model: {reason}") from error


def fault_of(proto: ModelProto) -> str | None:
    """Returns the first fault of the model, in one line, or None."""
    fault = next(chain(_no_text(proto), _far_axes(proto)), None)
    if fault is not None or proto.ByteSize() > _LARGEST:
        return fault
    try:
        if not any(t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer):
            _run_checker(proto)
        if any(ends_the_process(n) for n in model_nodes(proto)):
            return None
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:  # noqa: BLE001  # any exception of onnx is about the model
        return next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
    return None


def _run_checker(proto: ModelProto) -> None:
    """Runs onnx's checker; ignores its error about an output without a shape, which is allowed."""
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        if "'shape' of 'type' is required" not in str(error):
            raise


def _far_axes(proto: ModelProto) -> Iterator[str]:
    """Yields a fault for each axis beyond any rank. onnx reads only the last 32 bits of an axis."""
    for node in model_nodes(proto):
        for a in node.attribute:
            if a.name == "axis" and abs(a.i) >= 1 << 31:
                yield f"axis {a.i} of {node.op_type} '{node.name}' is out of range"


def _no_text(message: Any) -> Iterator[str]:
    """Yields a fault for each string field that is not UTF-8. protobuf returns such fields as
    bytes.
    """
    work = [message]
    while work:
        for field, value in work.pop().ListFields():
            values = value if field.is_repeated else [value]
            if field.message_type is not None:
                work += values
            elif field.type == field.TYPE_STRING:
                damaged = [v for v in values if isinstance(v, bytes)]
                yield from (f"its {field.name} {v!r} is not UTF-8 text" for v in damaged)


# operators whose `axis` refers to the first operand -> how many axes beyond its rank are allowed
_BY_AXIS: dict[str, int] = {
    **dict.fromkeys(
        [
            "ArgMax",
            "ArgMin",
            "Compress",
            "Concat",
            "Gather",
            "GatherElements",
            "Hardmax",
            "LayerNormalization",
            "LogSoftmax",
            "LpNormalization",
            "RMSNormalization",
            "Scatter",
            "ScatterElements",
            "Softmax",
            "Split",
            "TopK",
            "Unique",
        ],
        0,
    ),
    "Flatten": 1,
    "OneHot": 1,
}


# operators with a list of axes: an attribute, or operand 1
_BY_AXES = frozenset({*domains.REDUCTIONS, "Squeeze", "Unsqueeze"})
# operators whose operands have one rank, which onnx does not always check
_RANKS: dict[str, dict[int, int]] = {
    "Gemm": {0: 2, 1: 2},
    "NegativeLogLikelihoodLoss": {2: 1},
    "SoftmaxCrossEntropyLoss": {2: 1},
}


def check_axes(program: Program, where: str) -> None:
    """Raises InputError for an attribute that names an axis which an operand of known rank lacks,
    and for an operand of a rank that its operator does not accept.
    """
    for block in [program.main, *program.functions.values()]:
        for b in block.walk():
            if b.domain == "" and (b.op in _BY_AXIS or b.op == "Transpose"):
                _check_axis(b, where)
            elif b.domain == "" and b.op in _BY_AXES:
                _check_list(b, where)
            elif b.domain == "" and b.op in _RANKS:
                _check_ranks(b, where)


def _check_ranks(b: Binding, where: str) -> None:
    for index, rank in _RANKS[b.op].items():
        operand = b.operand(index)
        if operand is not None and operand.rank not in (None, rank):
            raise InputError(
                f"{where}: {b.op} '{b.node.name[:80]}': its operand '{operand.name[:80]}' has "
                f"{counted(operand.rank, 'axis', 'axes')}, not {rank}"
            )


def _check_list(b: Binding, where: str) -> None:
    """Raises InputError for an axis in an attribute or a constant that the operand lacks, or for
    Unsqueeze the result.
    """
    operand, listed = b.operand(0), b.operand(1)
    rank, axes = None if operand is None else operand.rank, b.attrs.get("axes")
    if axes is None and listed is not None and listed.const is not None:
        axes = tuple(listed.const.reshape(-1).tolist())
    if rank is None or not isinstance(axes, tuple):
        return
    most = rank + len(axes) if b.op == "Unsqueeze" else rank
    for axis in axes if most else ():
        if not -most <= axis < most:
            owner = "result" if b.op == "Unsqueeze" else "operand"
            raise InputError(
                f"{where}: {b.op} '{b.node.name[:80]}': its {owner} of "
                f"{counted(most, 'axis', 'axes')} has no axis "
                f"{axis}"
            )


def _check_axis(b: Binding, where: str) -> None:
    operand = b.operand(0)
    rank = None if operand is None else operand.rank
    if not rank:  # unknown, or a scalar, where operators differ
        return
    if b.op == "Transpose":
        perm = b.attrs.get("perm")
        if isinstance(perm, tuple) and sorted(perm) != list(range(rank)):
            raise InputError(
                f"{where}: {b.op} '{b.node.name[:80]}': {str(perm)[:60]} is no order of "
                f"{counted(rank, 'axis', 'axes')}"
            )
        return
    axis, most = b.attrs.get("axis"), rank + _BY_AXIS[b.op]
    if isinstance(axis, int) and not -most <= axis < most:
        raise InputError(
            f"{where}: {b.op} '{b.node.name[:80]}': its operand of "
            f"{counted(rank, 'axis', 'axes')} has no axis {axis}"
        )
