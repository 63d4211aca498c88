"""An ONNX model as a layer of PyTorch, of JAX, and of an optimisation with SciPy.

    python scripts/examples/onnx_layer.py model.onnx

`onnxgrad.linearize` cuts the gradient in two models: forward, which also returns residuals, and
backward. Both run in onnxruntime; the other program sees one function and its derivative.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx

import onnxgrad

FLOATS = ("f16", "f32", "f64")


class Layer:
    """A model, its derivative by every floating-point input, and sessions that run them."""

    def __init__(self, model: Any, target: Any = None) -> None:
        import onnxruntime

        self.model = model
        self.parts = onnxgrad.linearize(model, target=target)
        manifest = self.parts.manifest
        self.inputs = [v.name for v in manifest.inputs]
        self.floats = {v.name: v for v in manifest.inputs if v.dtype in FLOATS}
        self.targets = [v.of for v in manifest.adjoints]
        self.gradients = {v.of: v.name for v in manifest.gradients}
        self.adjoints = [v.name for v in manifest.adjoints]
        self.residuals = [v.name for v in manifest.residuals]
        self._sessions = [
            onnxruntime.InferenceSession(part.SerializeToString())
            for part in (self.parts.forward, self.parts.backward)
        ]

    def forward(self, *inputs: Any) -> dict[str, Any]:
        """Returns outputs and residuals by name; residuals may be inputs."""
        given = dict(zip(self.inputs, inputs, strict=True))
        return {**given, **_run(self._sessions[0], given)}

    def backward(self, residuals: Mapping[str, Any], *adjoints: Any) -> dict[str, Any]:
        """Returns the gradient of each floating-point input by name."""
        given = {**residuals, **dict(zip(self.adjoints, adjoints, strict=True))}
        found = _run(self._sessions[1], given)
        return {name: found[self.gradients[name]] for name in self.floats}

    @cached_property
    def derivative(self) -> Layer:
        """The gradients as a function of inputs and adjoints, to be differentiated again."""
        whole = onnxgrad.gradient(self.model, list(self.floats), self.targets, adjoint="input")
        return Layer(whole, [self.gradients[name] for name in self.floats])


def _run(session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    given = {v.name: np.asarray(values[v.name]) for v in session.get_inputs() if v.name in values}
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def torch_function(layer: Layer) -> Callable[..., Any]:
    """A function of tensors that PyTorch differentiates, also twice."""
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            values = layer.forward(*(v.detach().numpy() for v in inputs))
            kept = [torch.from_numpy(np.asarray(values[name])) for name in layer.residuals]
            ctx.save_for_backward(*inputs, *kept)
            results = tuple(torch.from_numpy(np.asarray(values[name])) for name in layer.targets)
            return results[0] if len(results) == 1 else results

        @staticmethod
        def backward(ctx: Any, *adjoints: Any) -> Any:
            inputs = ctx.saved_tensors[: len(layer.inputs)]
            if torch.is_grad_enabled():  # create_graph=True
                found = torch_function(layer.derivative)(*inputs, *adjoints)
                by_name = dict(zip(layer.floats, (found,) if len(layer.floats) == 1 else found))
            else:
                kept = zip(layer.residuals, ctx.saved_tensors[len(layer.inputs) :], strict=True)
                made = layer.backward(
                    {name: v.numpy() for name, v in kept}, *(g.numpy() for g in adjoints)
                )
                by_name = {name: torch.from_numpy(np.asarray(g)) for name, g in made.items()}
            return tuple(by_name.get(name) for name in layer.inputs)

    return Function.apply


def jax_function(layer: Layer) -> Callable[..., Any]:
    """A function of floating-point arrays that JAX differentiates and compiles, by callbacks."""
    import jax

    manifest = layer.parts.manifest
    dtypes = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i64": np.int64,
              "i32": np.int32, "bool": np.bool_}  # fmt: skip
    types = {
        v.name: jax.ShapeDtypeStruct(v.shape, dtypes[v.dtype])
        for v in (*manifest.outputs, *manifest.residuals, *manifest.gradients)
    }

    def call(names: list[str], function: Callable[..., dict[str, Any]], *given: Any) -> Any:
        def chosen(*given: Any) -> list[Any]:
            values = function(*given)
            return [np.asarray(values[name]) for name in names]

        where = [types[layer.gradients.get(name, name)] for name in names]
        return jax.pure_callback(chosen, where, *given)

    def outputs(found: list[Any]) -> Any:
        return found[0] if len(layer.targets) == 1 else tuple(found)

    @jax.custom_vjp
    def function(*inputs: Any) -> Any:
        return outputs(call(layer.targets, layer.forward, *inputs))

    def forward(*inputs: Any) -> Any:
        names = [*layer.targets, *layer.residuals]
        found = call(names, layer.forward, *inputs)
        count = len(layer.targets)
        return outputs(found[:count]), found[count:]

    def backward(kept: list[Any], adjoints: Any) -> Any:
        def run(*given: Any) -> dict[str, Any]:
            residuals = dict(zip(layer.residuals, given[: len(kept)], strict=True))
            return layer.backward(residuals, *given[len(kept) :])

        given = [adjoints] if len(layer.targets) == 1 else adjoints
        return tuple(call(layer.inputs, run, *kept, *given))

    function.defvjp(forward, backward)
    return function


def scipy_minimum(layer: Layer, start: np.ndarray[Any, Any]) -> Any:
    """The minimum of a layer with one input and one number as its output, by L-BFGS."""
    from scipy.optimize import minimize

    (name,), (target,) = layer.inputs, layer.targets

    def value_and_slope(x: Any) -> tuple[float, Any]:
        values = layer.forward(x.reshape(start.shape).astype(start.dtype))
        slope = layer.backward(values, np.ones_like(values[target]))[name]
        return float(values[target]), slope.astype(np.float64).ravel()

    return minimize(value_and_slope, start.astype(np.float64).ravel(), jac=True, method="L-BFGS-B")


def main() -> None:
    """Prints what the backward part of a model reads."""
    layer = Layer(onnx.load(sys.argv[1]))
    for residual in layer.parts.manifest.residuals:
        print(f"{residual.name}: {residual.dtype}{list(residual.shape or ())} ({residual.origin})")


if __name__ == "__main__":
    main()
