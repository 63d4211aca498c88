"""The node cases of ONNX's backend suite in float16, bfloat16 and float64: the same graph with its float32 replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

from onnxgrad import gradient
from onnxgrad.ir.load import load
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.reference.kernels.registry import Unsupported
from onnxgrad.verify.running.session import run
from tests.backend_suite import FLOATS, Case, clamp_ir
from tests.grad.test_suite import WRT

DTYPES: dict[int, type] = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.DOUBLE: np.float64,
}
# of the largest gradient, between onnxruntime and the float64 reference of the same graph
TOLERANCES = {TensorProto.FLOAT16: 2e-2, TensorProto.BFLOAT16: 1e-1, TensorProto.DOUBLE: 1e-6}


def converted(model: ModelProto, dtype: int) -> ModelProto:
    """The model with `dtype` wherever it says float32: inputs, outputs, weights, constants, casts, nested graphs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _graph(copy.graph, dtype)
    return copy


def _graph(graph: onnx.GraphProto, dtype: int) -> None:
    for v in (*graph.input, *graph.output, *graph.value_info):
        _type(v.type, dtype)
    for t in graph.initializer:
        _tensor(t, dtype)
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                _tensor(a.t, dtype)
            elif a.type == AttributeProto.GRAPH:
                _graph(a.g, dtype)
            elif (
                a.name in ("to", "dtype", "stash_type")
                and a.i == TensorProto.FLOAT
                and a.name != "stash_type"
            ):
                a.i = dtype


def _type(type_: onnx.TypeProto, dtype: int) -> None:
    for kind in ("tensor_type", "sequence_type", "optional_type"):
        if type_.HasField(kind):
            inner = getattr(type_, kind)
            if kind != "tensor_type":
                _type(inner.elem_type, dtype)
            elif inner.elem_type == TensorProto.FLOAT:
                inner.elem_type = dtype


def _tensor(tensor: TensorProto, dtype: int) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(
            numpy_helper.from_array(
                numpy_helper.to_array(tensor).astype(DTYPES[dtype]), tensor.name
            )
        )


def _value(value: Any, dtype: int) -> Any:
    if isinstance(value, list):
        return [_value(v, dtype) for v in value]
    return value.astype(DTYPES[dtype]) if getattr(value, "dtype", None) == np.float32 else value


def judge(case: Case, dtype: int) -> str:
    """ "right", or why the case says nothing in this dtype. Raises AssertionError where its gradient is not right, and
    lets pass what `grad` and onnxruntime raise once the forward has run.
    """
    model, feeds = clamp_ir(case.model), {k: _value(v, dtype) for k, v in case.inputs.items()}
    operand = WRT.get(model.graph.node[0].op_type)
    wrt = None if operand is None else [model.graph.node[0].input[operand]]
    model = converted(model, dtype)
    if all(
        v.type.tensor_type.elem_type != dtype for v in (*model.graph.input, *model.graph.output)
    ):
        return "no float32 in it"
    try:
        load(model)
        with np.errstate(all="ignore"):
            forward = run(model, feeds)
    except Exception:  # noqa: BLE001  # the operator does not take the dtype, or onnxruntime has no kernel for it
        return "the forward does not run"
    targets = [
        v.name for v in model.graph.output
        if v.type.tensor_type.elem_type in FLOATS and np.isfinite(np.asarray(forward[v.name], np.float64)).all()
    ]  # fmt: skip
    if not targets:
        return "no finite float result"
    rng = np.random.default_rng(0)
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    u = {
        f"{t}_grad": rng.standard_normal(np.shape(forward[t])).astype(
            DTYPES.get(kinds[t], np.float32)
        )
        for t in targets
    }
    graph = gradient(model, wrt, targets, adjoint="input")
    found = run(graph, {**feeds, **u})
    names = [v.name for v in graph.graph.output][len(model.graph.output) :]
    try:
        exact = reference(graph, {**feeds, **u})
    except Unsupported:
        return "the reference does not run"
    pairs = [(n, np.asarray(found[n], np.float64), np.asarray(exact[n], np.float64)) for n in names]
    scale = max(
        (float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) for _, _, b in pairs), default=0.0
    )
    for name, a, b in pairs:
        assert a.shape == b.shape, f"{name}: shapes {a.shape} and {b.shape}"
        off = float(np.abs((a - b)[np.isfinite(a) & np.isfinite(b)]).max(initial=0.0))
        assert off <= TOLERANCES[dtype] * scale, (
            f"{name}: {off:.2e} off, the largest is {scale:.2e}"
        )
    return "right"


def sweep(cases: Iterable[Case], dtypes: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """The counts of answers by dtype, and one line for each failure."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    kinds = list(dtypes)
    for case in cases:
        for dtype in kinds:
            name = TensorProto.DataType.Name(dtype).lower()
            try:
                answer = judge(case, dtype)
            except Exception as error:  # noqa: BLE001  # a crash is a finding
                answer = "FAILED"
                failures.append(
                    f"{case.name} in {name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
                )
            counts[f"{name}: {answer}"] += 1
    return counts, failures
