"""If, Loop, Scan and other operators with subgraphs; types and constants, whose narrow floats
become float64; random numbers, which both graphs of a proof share.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}


def dtype_of(code: int) -> np.dtype[Any]:
    """Returns the dtype of a TensorProto type in this reference."""
    return np.dtype(np.float64) if code in _FLOATS else onnx.helper.tensor_dtype_to_np_dtype(code)


@kernel("If", why="missing")
def if_(call: Call, condition: Array) -> tuple[Any, ...]:
    branch = (
        call["then_branch"] if bool(np.asarray(condition).reshape(-1)[0]) else call["else_branch"]
    )
    return tuple(branch())


@kernel("Loop", why="missing")
def loop(call: Call, trips: Array | None, condition: Array | None, *state: Any) -> tuple[Any, ...]:
    carried = list(state)
    columns: list[list[Any]] = []
    going = condition is None or bool(np.asarray(condition).reshape(-1)[0])
    count = None if trips is None else int(np.asarray(trips).reshape(-1)[0])
    for step in itertools.count():
        if not going or (count is not None and step >= count):
            break
        keep, *rest = call["body"](np.asarray(step, np.int64), np.asarray(True), *carried)
        carried, scanned = rest[: len(state)], rest[len(state) :]
        columns = columns or [[] for _ in scanned]
        for column, value in zip(columns, scanned, strict=True):
            column.append(value)
        going = bool(np.asarray(keep).reshape(-1)[0])
    if not columns:
        return (*carried, *call["body"].unturned[1 + len(state) :])
    return (*carried, *map(np.stack, columns))


@kernel("Scan", why="missing")
def scan(call: Call, *operands: Any) -> tuple[Any, ...]:
    """Runs a Scan of opset 9 or later. In opset 8, optional sequence lengths and a batch axis come
    first.
    """
    if call.version < 9:
        return _scan8(call, *operands)
    count = call["num_scan_inputs"]
    state, sequences = list(operands[: len(operands) - count]), operands[len(operands) - count :]
    axes = call["scan_input_axes"] or [0] * count
    backwards = call["scan_input_directions"] or [0] * count
    outputs = len(call.outputs) - len(state)
    out_axes = call["scan_output_axes"] or [0] * outputs
    out_backwards = call["scan_output_directions"] or [0] * outputs
    length = sequences[0].shape[axes[0]]
    columns: list[list[Any]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices = [
            np.take(s, length - 1 - step if back else step, axis=axis)
            for s, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        found = call["body"](*state, *slices)
        state = found[: len(state)]
        for column, value in zip(columns, found[len(state) :], strict=True):
            column.append(value)
    stacked = [
        np.stack(c[::-1] if back else c, axis=axis)
        for c, axis, back in zip(columns, out_axes, out_backwards, strict=True)
    ]
    return (*state, *stacked)


def _scan8(call: Call, lengths: Array | None, *operands: Any) -> tuple[Any, ...]:
    if lengths is not None:
        raise Unsupported("Scan of opset 8 with sequence lengths")
    attributes = {
        "body": call["body"],
        "num_scan_inputs": call["num_scan_inputs"],
        "scan_input_directions": call["directions"],
    }
    one = Call(call.op_type, call.domain, 9, attributes, call.inputs, call.outputs)
    rows = [scan(one, *(operand[b] for operand in operands)) for b in range(operands[0].shape[0])]
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


@kernel("SequenceMap", why="missing")
def sequence_map(call: Call, sequence: list[Any], *others: Any) -> tuple[Any, ...]:
    rows = [
        call["body"](
            *(other[i] if isinstance(other, list) else other for other in (sequence, *others))
        )
        for i in range(len(sequence))
    ]
    return tuple([row[k] for row in rows] for k in range(len(call.outputs)))


@kernel("SequenceInsert", why="wrong")
def sequence_insert(
    call: Call, sequence: list[Any], element: Any, position: Array | None = None
) -> tuple[list[Any]]:
    """Inserts at the position. onnx.reference takes it modulo the length, so the end becomes the
    front.
    """
    index = len(sequence) if position is None else int(np.reshape(position, ()))
    index += len(sequence) if index < 0 else 0
    return ([*sequence[:index], element, *sequence[index:]],)


@kernel("Cast", why="rounds")
def cast(call: Call, x: Array) -> Array:
    """Casts to a type. Casts between float types do nothing, which makes this a float64 reference;
    but numbers that float16 cannot hold become infinite, or 0.
    """
    made = cast_to_type(call, x, dtype_of(call["to"]), call["to"])
    if call["to"] != onnx.TensorProto.FLOAT16 or x.dtype != np.float64 or not x.size:
        return made
    size = np.abs(x)
    if (size < _LARGEST).all() and (size > _LEAST).all():
        return made
    made = np.where(size <= _LEAST, 0.0 * made, made)
    return np.where(size >= _LARGEST, np.copysign(np.inf, made), made)


# what float16 rounds to infinity, and to 0
_LARGEST, _LEAST = 65520.0, 2.0**-25


@kernel("CastLike", why="rounds")
def cast_like(call: Call, x: Array, like: Array) -> Array:
    code = (
        onnx.TensorProto.STRING
        if like.dtype.kind in "OUS"
        else onnx.helper.np_dtype_to_tensor_dtype(like.dtype)
    )
    return cast_to_type(call, x, like.dtype, code)


def cast_to_type(call: Call, x: Array, target: np.dtype[Any], code: int) -> Array:
    """Returns x with the dtype `target` of the TensorProto type `code`, by `saturate` and
    `round_mode`.
    """
    narrow = x.astype(np.float32) if x.dtype == np.float64 else x
    if code == onnx.TensorProto.STRING:
        return narrow.astype(str).astype(object)
    if x.dtype.kind in "OUS":
        return np.asarray(x, object).astype(np.float64).astype(target)
    if (target.kind in "iufbc" and target.name[:5] != "float") or target == np.float64:
        return x.astype(target)
    from onnx.reference.ops.op_cast import cast_to  # imports every other operator too, in 0.1 s

    saturate = True if call["saturate"] is None else bool(call["saturate"])
    kind: Any = code  # onnx.reference's annotation is an enum, but its callers pass the number
    return np.asarray(cast_to(narrow, kind, saturate, call["round_mode"] or "up"))


@kernel("BitCast", why="wrong")
def bit_cast(call: Call, x: Array) -> Array:
    """Reinterprets bits. The width of the result shows which float x is, except for 16 bits, where
    two types exist.
    """
    target = onnx.helper.tensor_dtype_to_np_dtype(call["to"])
    if x.dtype == np.float64:
        if target.itemsize not in (4, 8):
            raise Unsupported("BitCast of a float of 16 bits: whether float16 or bfloat16 is lost")
        x = x.astype(np.float32 if target.itemsize == 4 else np.float64)
    return x.view(target)


_KINDS: dict[str, Any] = {"int": np.int64, "flo": np.float64, "str": object}


@kernel("Constant", why="memory")
def constant(call: Call) -> Array:
    for name, value in call.attributes.items():
        if name in ("value", "sparse_value"):
            return np.asarray(value)
        if name.startswith("value_"):
            return np.asarray(value, _KINDS[name[6:9]])
    raise Unsupported(f"the Constant {call.outputs[0]!r} has no value")


@kernel("ConstantOfShape", why="memory")
def constant_of_shape(call: Call, shape: Array) -> Array:
    """Returns one element broadcast to the shape: such constants can be large, and most are
    broadcast at once.
    """
    value = np.zeros(1) if call["value"] is None else call["value"]
    return np.broadcast_to(value.reshape(()), tuple(int(n) for n in shape))


@kernel("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", why="draws")
def random(call: Call, like: Array | None = None) -> Array:
    shape = call["shape"] if like is None else like.shape
    if "Normal" in call.op_type:
        return np.asarray(call.random().normal(call["mean"], call["scale"], shape))
    return np.asarray(call.random().uniform(call["low"], call["high"], shape))


@kernel("Bernoulli", why="draws")
def bernoulli(call: Call, x: Array) -> Array:
    return (call.random().random(x.shape) < x).astype(
        x.dtype if call["dtype"] is None else dtype_of(call["dtype"])
    )


@kernel("Multinomial", why="draws")
def multinomial(call: Call, x: Array) -> Array:
    weights = np.exp(x - x.max(axis=1, keepdims=True)).cumsum(axis=1)
    draws = call.random().random((x.shape[0], call["sample_size"])) * weights[:, -1:]
    chosen = (draws[:, :, None] >= weights[:, None, :]).sum(axis=2)
    return np.asarray(chosen, dtype_of(call["dtype"] or onnx.TensorProto.INT32))


@kernel("Dropout", why="draws")
def dropout(
    call: Call, x: Array, ratio: Array | None = None, training: Array | None = None
) -> tuple[Array, Array]:
    """Runs in inference mode unless `training_mode` is true; opset 6 and below had an attribute
    `is_test`.
    """
    active = (
        bool(training)
        if call.version >= 12 and training is not None
        else call.version < 7 and not call["is_test"]
    )
    share = (
        float(ratio)
        if ratio is not None
        else float(call["ratio"] if call["ratio"] is not None else 0.5)
    )
    if not active or share == 0:
        return x, np.ones(x.shape, bool)
    keep = np.asarray(call.random().random(x.shape) >= share)
    return np.where(keep, x / (1 - share), 0.0), keep


@kernel("Optional", why="wrong")
@kernel("Identity", why="memory")
@kernel("MemcpyToHost", "MemcpyFromHost", why="missing")
def unchanged(call: Call, x: Any = None) -> tuple[Any]:
    return (x,)
