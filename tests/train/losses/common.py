"""A loss behind a model that hands its inputs through, and its gradient with respect to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnxgrad
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load_own
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.train.losses import Loss, Place
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run

Sizes = Sequence[int | str | None]


def through(
    outputs: Mapping[str, Sizes], dtype: int = TensorProto.DOUBLE, opset: int = 18
) -> onnx.ModelProto:
    """NAME = 1 * NAME_in for each output."""
    one = helper.make_tensor("one", dtype, (), [1.0])
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Mul", [f"{name}_in", "one"], [name]) for name in outputs],
            "through",
            [
                helper.make_tensor_value_info(f"{name}_in", dtype, shape)
                for name, shape in outputs.items()
            ],
            [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
            [one],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def with_loss(model: Any, loss: Loss) -> onnx.ModelProto:
    """The model with the loss as its only output."""
    program = load_own(model)
    block = program.main
    with emitting(block, share=True):
        value = loss.emit(Place(block))
        result = op.Identity(value)
    for v in list(block.outputs):
        block.remove_output(v)
    block.add_output(result)
    return to_proto(program)


def labels_of(model: onnx.ModelProto) -> dict[str, str]:
    """The inputs that a loss added, as text."""
    block = onnxgrad.load(model).main
    return {v.name: str(v.type) for v in block.inputs if not v.name.endswith("_in")}


def found(
    loss: Loss,
    values: Mapping[str, Any],
    labels: Mapping[str, Any],
    *,
    wrt: Sequence[str] | None = None,
    onnxruntime: bool = True,
    symbolic: bool = True,
    opset: int = 18,
) -> tuple[float, dict[str, np.ndarray]]:
    """The loss of float64 values and its gradient by each, by the reference; onnxruntime finds the same."""
    arrays = {k: np.asarray(v, np.float64) for k, v in values.items()}
    sizes = {
        k: [f"{k}{i}" if symbolic else d for i, d in enumerate(v.shape)] for k, v in arrays.items()
    }
    if symbolic and len({v.shape for v in arrays.values()}) == 1:
        sizes = {k: [f"d{i}" for i in range(v.ndim)] for k, v in arrays.items()}
    graph = onnxgrad.gradient(
        with_loss(through(sizes, opset=opset), loss), [f"{k}_in" for k in wrt or arrays]
    )
    feeds = {**{f"{k}_in": v for k, v in arrays.items()}, **labels}
    checks = [reference(graph, feeds)] + ([run(graph, feeds)] if onnxruntime else [])
    names = [v.name for v in graph.graph.output]
    if onnxruntime:
        for name in names:
            np.testing.assert_allclose(
                checks[1][name], checks[0][name], rtol=1e-9, atol=1e-12, err_msg=name
            )
    first = checks[0]
    return float(first[names[0]]), {
        k: first[n] for k, n in zip(wrt or arrays, names[1:], strict=True)
    }


def check(
    loss: Loss, formula: Callable[..., Any], values: Mapping[str, Any], labels: Mapping[str, Any]
) -> None:
    """The loss is the formula over arrays, and its gradient the formula's differences."""
    arrays = {k: np.asarray(v, np.float64) for k, v in values.items()}
    value, gradients = found(loss, arrays, labels)
    np.testing.assert_allclose(value, formula(**arrays, **labels), rtol=1e-12)
    for name, x in arrays.items():
        expected = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            h = np.zeros_like(x)
            h[place] = 1e-5
            two = [formula(**{**arrays, name: x + side * h}, **labels) for side in (1, -1)]
            expected[place] = (two[0] - two[1]) / 2e-5
        np.testing.assert_allclose(gradients[name], expected, atol=1e-8, err_msg=f"{loss}: {name}")


def log_softmax(z: np.ndarray, axis: int = -1) -> np.ndarray:
    z = z - z.max(axis, keepdims=True)
    return z - np.log(np.exp(z).sum(axis, keepdims=True))
