"""The numeric check of a gradient rule: `<v, J'u>` of the gradient graph against central differences in float64.

One line per case::

    check_op("y = Tanh (x)", {"x": normal(2, 3)})
    check_op("y, m = MaxPool <kernel_shape = [2, 2]> (x)", {"x": distinct(1, 2, 4, 4)}, outputs=["y"])
    check_op("y = Gather <axis = 1> (x, i)", {"x": normal(2, 5), "i": np.array([1, 3])})  # integers stay
    check_op("y = ReduceSum (x, a)", {"x": normal(2, 3)}, constants={"a": np.array([1])})  # known beforehand
    check_model(model, feeds, wrt=["x", "w"])                                                  # any model

For every output a random adjoint u is fed through `adjoint="input"`; for every float input a random direction v is
tried. Three seeds. The gradient graph runs in onnxruntime (relative to the largest gradient: 1e-4) and, itself, in
the float64 reference (1e-6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgrad import gradient
from onnxgrad.grad import find
from onnxgrad.ir.domains import full_name
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run

SEEDS = (0, 1, 2)
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SYMBOLS = "abcdefghijklmnopqrstuvwxyz"


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal float32 numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers in [0.5, 1.5)."""
    return np.random.default_rng([seed, *shape]).uniform(0.5, 1.5, shape).astype(np.float32)


def within(low: float, high: float, *shape: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers in [low, high)."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def distinct(*shape: int, seed: int = 0) -> np.ndarray:
    """Float32 numbers that differ by at least 0.1, in random order: no ties, away from 0."""
    size = int(np.prod(shape))
    values = (np.arange(size) - size // 2) * 0.1 + 0.05
    return (
        np.random.default_rng([seed, *shape]).permutation(values).astype(np.float32).reshape(shape)
    )


def op_model(
    node: str | onnx.NodeProto,
    feeds: Mapping[str, Any],
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] | None = None,
    opset: int = 21,
    symbolic: bool = False,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of one node (or several lines of nodes) with the feeds as inputs and constants as initializers.

    `symbolic`: every dimension of every input is a symbol of its own, equal sizes sharing one.
    """
    nodes = (
        [node]
        if isinstance(node, onnx.NodeProto)
        else list(onnx.parser.parse_graph(f"g () => () {{ {node} }}").node)
    )
    sizes: dict[int, str] = {}

    def dim(d: int) -> int | str:
        return sizes.setdefault(d, f"{_SYMBOLS[len(sizes)]}") if symbolic else d

    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(v.dtype), [dim(d) for d in v.shape]
        )
        for n, v in feeds.items()
    ]
    names = list(outputs) if outputs is not None else [n for n in nodes[-1].output if n]
    graph = helper.make_graph(
        nodes,
        "case",
        inputs,
        [onnx.ValueInfoProto(name=n) for n in names],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, v) for d, v in (domains or {}).items()),
    ]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = (
        v
        for v in (*inferred.graph.output, *inferred.graph.value_info)
        if v.type.HasField("tensor_type")
    )
    types = {v.name: v for v in known}
    found = {} if all(n in types for n in names) else reference(model, feeds)
    for i, name in enumerate(names):
        # onnx infers nothing for some operators; a file would declare what the author knows
        value = types.get(name)
        model.graph.output[i].CopyFrom(
            value if value is not None else _declared(name, found[name], symbolic)
        )
    return model


def _declared(name: str, value: Any, symbolic: bool) -> onnx.ValueInfoProto:
    array = np.asarray(value)
    dtype = (
        TensorProto.FLOAT
        if array.dtype == np.float64
        else helper.np_dtype_to_tensor_dtype(array.dtype)
    )
    return helper.make_tensor_value_info(
        name, dtype, [None if symbolic else d for d in array.shape]
    )


def check_op(
    node: str | onnx.NodeProto,
    feeds: Mapping[str, Any],
    wrt: Sequence[str] | None = None,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: Sequence[str] | None = None,
    opset: int = 21,
    symbolic: bool | None = None,
    domains: Mapping[str, int] | None = None,
    **options: Any,
) -> None:
    """`check_model` of a one-node model, with fixed sizes and with symbolic ones (`symbolic` chooses one of them)."""
    for sym in (False, True) if symbolic is None else (symbolic,):
        model = op_model(
            node,
            feeds,
            constants=constants,
            outputs=outputs,
            opset=opset,
            symbolic=sym,
            domains=domains,
        )
        check_model(model, feeds, wrt, **options)


def check_model(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    wrt: Sequence[str] | None = None,
    *,
    target: Any = None,
    rtol: float = 1e-4,
    reference_rtol: float = 1e-6,
    step: float = 1e-6,
    onnxruntime: bool = True,
    optimize: bool = True,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Assert that the gradient of all float outputs (or `target`) agrees with central differences, for every wrt."""
    targets = _targets(model, target)
    wrt = list(wrt) if wrt is not None else [v.name for v in model.graph.input if _is_float(v)]
    graph = gradient(model, wrt, targets, adjoint="input")
    assert without_rule(emitted(model, graph)) == set(), "emitted, and no second derivative of it"
    if all(
        v.type.tensor_type.HasField("shape")
        for v in model.graph.output
        if v.type.HasField("tensor_type")
    ):
        onnx.checker.check_model(graph)  # it refuses outputs of unknown rank, which are legal
    for seed in seeds:
        rng = np.random.default_rng(seed)
        base = reference(model, feeds)
        # in the model's dtype, so that both sides see the same numbers
        u = {t: rng.standard_normal(np.shape(base[t])) for t in targets}
        u = {t: v.astype(_dtype(model, t)) for t, v in u.items()}
        given = {**feeds, **{f"{t}_grad": v for t, v in u.items()}}
        found = {"float64": reference(graph, given)}
        if onnxruntime:
            found["onnxruntime"] = run(graph, given, optimize=optimize)
        names = _gradient_names(model, graph, wrt, targets)
        scale = max(
            1e-30,
            *(
                float(np.linalg.norm(np.asarray(found["float64"][names[w]], np.float64)))
                for w in wrt
            ),
        )
        for w in wrt:
            x = _value(model, feeds, w)
            v = rng.standard_normal(x.shape)
            expected = _difference(model, feeds, w, x, v, u, step)
            for check, values in found.items():
                g = np.asarray(values[names[w]], np.float64)
                assert g.shape == x.shape, (
                    f"{check}: gradient of {w} has shape {g.shape}, not {x.shape}"
                )
                got = float(np.sum(g * v))
                limit = (
                    (reference_rtol if check == "float64" else rtol)
                    * scale
                    * max(1.0, np.sqrt(x.size) / 4)
                )
                assert abs(got - expected) <= limit, (
                    f"{check}, seed {seed}: gradient of {w}: <g, v> = {got:.9g}, differences give {expected:.9g} "
                    f"(scale {scale:.3g})\n{onnx.printer.to_text(graph.graph)}"
                )


def operators(model: onnx.ModelProto) -> Counter[str]:
    """How often each operator stands in a model, in nested graphs and functions too; "domain::Op" outside of ONNX."""

    def walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            yield node
            for a in node.attribute:
                yield from walk([*a.g.node, *(n for g in a.graphs for n in g.node)])

    every = walk([*model.graph.node, *(n for f in model.functions for n in f.node)])
    return Counter(full_name(n.domain, n.op_type) for n in every)


def emitted(given: onnx.ModelProto, graph: onnx.ModelProto) -> set[str]:
    """The operators that the gradient graph of `given` has more of."""
    return set(operators(graph) - operators(given))


def without_rule(names: Iterable[str]) -> set[str]:
    """Those that cannot be differentiated: neither a rule nor a body in ONNX's schema."""
    return {
        n
        for n in names
        if find(n) is None and not (onnx.defs.has(n) and onnx.defs.get_schema(n).has_function)
    }


def _targets(model: onnx.ModelProto, target: Any) -> list[str]:
    if target is None:
        return [v.name for v in model.graph.output if _is_float(v)]
    return [target] if isinstance(target, str) else list(target)


def _is_float(v: onnx.ValueInfoProto) -> bool:
    return v.type.tensor_type.elem_type in _FLOATS


def _dtype(model: onnx.ModelProto, name: str) -> np.dtype[Any]:
    value = next(v for v in model.graph.output if v.name == name)
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def _gradient_names(
    model: onnx.ModelProto, graph: onnx.ModelProto, wrt: Sequence[str], targets: Sequence[str]
) -> dict[str, str]:
    added = [v.name for v in graph.graph.output[len(model.graph.output) :]]
    assert len(added) == len(wrt)
    before = {v.name for v in model.graph.input}
    assert [v.name for v in graph.graph.input if v.name not in before] == [
        f"{t}_grad" for t in targets
    ]
    return dict(zip(wrt, added, strict=True))


def _value(model: onnx.ModelProto, feeds: Mapping[str, Any], name: str) -> np.ndarray:
    if name in feeds:
        return np.asarray(feeds[name], np.float64)
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name)).astype(
        np.float64
    )


def _difference(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    w: str,
    x: np.ndarray,
    v: np.ndarray,
    u: Mapping[str, Any],
    step: float,
) -> float:
    """(<u, f(x + hv)> - <u, f(x - hv)>) / 2h, Richardson's extrapolation of two steps."""
    h = step * max(1.0, float(np.abs(x).max(initial=0.0)))

    def central(h: float) -> float:
        plus, minus = (_forward(model, feeds, w, x + s * h * v) for s in (1, -1))
        return sum(float(np.sum(u[t] * (plus[t] - minus[t]))) for t in u) / (2 * h)

    return (4 * central(h) - central(2 * h)) / 3


def _forward(
    model: onnx.ModelProto, feeds: Mapping[str, Any], w: str, x: np.ndarray
) -> dict[str, Any]:
    if w in feeds:
        return reference(model, {**feeds, w: x})
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensor = next(t for t in copy.graph.initializer if t.name == w)
    tensor.CopyFrom(numpy_helper.from_array(x, w))
    return reference(copy, feeds)


def scalar_model(text: str, **values: np.ndarray) -> onnx.ModelProto:
    """A model from onnx.parser's text with `values` as initializers."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    return model


def names_of(values: Sequence[onnx.ValueInfoProto]) -> Iterator[str]:
    """The names of inputs or outputs."""
    return (v.name for v in values)
