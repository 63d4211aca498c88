"""Inputs and comparisons that share no code with the proof: for sweeps over graphs of others."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, helper

import onnxgrad
from onnxgrad.errors import NotProved
from onnxgrad.verify.feeds.dims import required_inputs
from onnxgrad.verify.random_operators import randoms
from onnxgrad.verify.running.session import Session, open_session

Feeds = dict[str, Any]
# scale and shift of normal values, then the range of integers
_KINDS: tuple[tuple[float, float, int, int], ...] = (
    (1, 0, 0, 2),
    (1, 0, 1, 2),
    (1, 0, 1, 4),
    (0.3, -2, -2, 2),
    (1e4, 0, 0, 10),
    (0, 0, 0, 1),
    (1, 0.5, -30, 30),
)
_SIZES = (3, 1, 5, 0)
_SECONDS = 20.0  # for the runs of one model
_RTOL = {"float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-4}  # of an element; else 1e-3
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
# without a reduction, ONNX leaves the result of repeated indices open, and so any gradient
_REPEATS = {"Scatter", "ScatterElements", "ScatterND", "MaxUnpool"}
_STEPS = (2.0**-6, 2.0**-8)  # of the central differences, relative to the largest input


def drawn(kind: TypeProto, size: int, how: tuple[float, float, int, int], rng: Any) -> Any:
    """Returns a value of a tensor type or a sequence of tensors; other types raise ValueError."""
    if kind.HasField("sequence_type"):
        return [drawn(kind.sequence_type.elem_type, size, how, rng) for _ in range(2)]
    if not kind.HasField("tensor_type"):
        raise ValueError("no tensor")
    tensor, (scale, shift, low, high) = kind.tensor_type, how
    given = tensor.shape.dim if tensor.HasField("shape") else [None, None]
    dims = [d.dim_value if d is not None and d.HasField("dim_value") else size for d in given]
    if tensor.elem_type == TensorProto.STRING:
        return rng.choice(np.array(["a", "b", "1"], object), dims)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "b":
        return rng.random(dims) < 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(max(low, limits.min), min(high, int(limits.max)), dims).astype(dtype)
    values = rng.standard_normal(dims) * scale + shift
    return (values + 1j * values if dtype.kind == "c" else values).astype(dtype)


def cases(model: ModelProto) -> Iterator[tuple[Feeds, dict[str, Any]]]:
    """Yields the feeds on which onnxruntime runs the model without optimisations, and results,
    until they have taken 20 seconds. Initializers that are inputs keep their values.
    """
    end = time.monotonic() + _SECONDS
    asked = required_inputs(model.graph)
    session = open_session(model, optimize=False)
    for i, size in enumerate(_SIZES if asked else _SIZES[:1]):
        for j, how in enumerate(_KINDS if asked else _KINDS[:1]):
            if time.monotonic() > end:
                return
            rng = np.random.default_rng([i, j])
            feeds = {v.name: drawn(v.type, size, how, rng) for v in asked}
            try:
                yield feeds, session.run(feeds, timeout=20.0)
            except NotProved:
                continue


def same(got: Any, want: Any) -> bool:
    """Returns whether values are equal: floats within a tolerance by dtype, others exactly."""
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(same, got, want))
    if want is None or isinstance(want, dict):
        return bool(got == want)
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "OUSbiu":
        return bool((a == b).all())
    x, y = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (a, b))
    limit = _RTOL.get(b.dtype.name, 1e-3)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=0))
    return bool(np.allclose(x, y, rtol=limit, atol=1e-2 * limit * scale + 1e-30, equal_nan=True))


def _same_shape(got: Any, want: Any) -> bool:
    return np.shape(got) == np.shape(want)


def compared(model: ModelProto, made: ModelProto) -> str:
    """Returns the first difference, where the model run with optimisations has none; empty if
    there is none. Models that draw random numbers are compared by shape and dtype.
    """
    draws, session, other = bool(randoms(model)), open_session(made), None
    for feeds, want in cases(model):
        try:
            got = session.run(feeds, timeout=60.0)
        except NotProved as error:
            got, failed = {}, str(error)
        for name, value in want.items():
            alike = same if not draws else _same_shape
            if name in got and alike(got[name], value):
                continue
            try:
                other = other or open_session(model)
                usual = other.run(feeds, timeout=60.0)
            except NotProved:
                break  # onnxruntime itself fails on the model as usually run
            if same(usual[name], value) or not got:
                shapes = {n: np.shape(v) for n, v in feeds.items()}
                return f"{name} {f'differs at {shapes}' if got else f'at {shapes}: {failed}'}"
    return ""


def differentiated(model: ModelProto, seconds: float) -> str | None:
    """Returns what is wrong with the gradient of the float outputs by the float inputs; None if
    no point can be judged: ties, jumps, other sizes nearby, or results that are not finite.
    """
    wrt = [v.name for v in required_inputs(model.graph) if v.type.tensor_type.elem_type in _FLOATS]
    targets = [v.name for v in model.graph.output if v.type.tensor_type.elem_type in _FLOATS]
    repeats = _REPEATS & {node.op_type for node in model.graph.node}
    if not wrt or not targets or repeats or randoms(model):
        return None
    made = onnxgrad.gradient(model, wrt, targets, adjoint="input", timeout=seconds)
    names, judged = [v.name for v in made.graph.output][-len(wrt) :], 0
    forward, backward = open_session(model, optimize=False), open_session(made)
    for point, (feeds, results) in enumerate(cases(model)):
        rng = np.random.default_rng(point)
        y = {t: results[t] for t in targets}
        u = {t: rng.standard_normal(np.shape(y[t])).astype(y[t].dtype) for t in targets}
        scale = max(float(np.abs(feeds[w]).max(initial=0)) for w in wrt)
        v = {w: rng.choice([-1.0, 1.0], np.shape(feeds[w])) * scale for w in wrt}
        if not 0 < scale < 1e2:
            continue  # ties, or steps so large that jumps look like a slope
        slope, noise = _slope(forward, feeds, u, v)
        if slope is None:
            continue
        got = backward.run({**feeds, **{f"{t}_grad": u[t] for t in targets}}, timeout=60.0)
        pairs = zip(names, wrt, strict=True)
        found = sum(float((np.float64(got[n]) * v[w]).sum()) for n, w in pairs)
        judged += 1
        if not abs(found - slope) <= 4e-2 * abs(slope) + 4 * noise:
            return f"point {point}: gradient {found:.6g}, differences {slope:.6g} +- {noise:.1g}"
    return "" if judged else None


def _slope(forward: Session, feeds: Feeds, u: Feeds, v: Feeds) -> tuple[float | None, float]:
    """Returns the slope of the sum of `u` times the outputs in direction `v`, and its noise; no
    slope if the differences of two widths, or of the two sides, are not the same.
    """

    def value(h: float) -> tuple[float, float]:
        moved = {w: (feeds[w] + h * d).astype(feeds[w].dtype) for w, d in v.items()}
        got = forward.run({**feeds, **moved}, timeout=20.0)
        if any(np.shape(got[t]) != np.shape(u[t]) for t in u):
            return np.nan, np.nan
        with np.errstate(all="ignore"):
            terms = [np.float64(u[t]) * np.float64(got[t]) for t in u]
        return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)

    try:
        middle, size = value(0.0)
        sides = [(h, value(h)[0], value(-h)[0]) for h in _STEPS]
    except NotProved:
        return None, 0.0  # outside of the domain
    rough, slope = ((up - down) / (2 * h) for h, up, down in sides)
    h, up, down = sides[-1]
    noise, bend = 1e-6 * size / h, (up + down - 2 * middle) / h
    smooth = max(abs(rough - slope), abs(bend)) <= 1e-2 * abs(slope) + noise
    return (slope if smooth else None), noise


def by_rows(
    model: ModelProto,
    made: ModelProto,
    inputs: list[str],
    join: Callable[[list[Any]], Any],
    part: Callable[[str, Any, int, int], Any],
) -> str | None:
    """Returns the first part of a result that is not the model's; None without two feeds of the
    same sizes. `join` makes an input of those of several runs, `part` takes the i-th of n parts
    of an output.
    """
    if {v.name for v in required_inputs(model.graph)} != set(inputs) or not inputs:
        return None
    groups: dict[str, list[tuple[Feeds, Feeds]]] = defaultdict(list)
    for case in cases(model):
        values = [v for side in case for v in side.values()]
        if all(isinstance(v, np.ndarray) for v in values):
            groups[str([v.shape for v in values])].append(case)
    session, several = open_session(made), [g for g in groups.values() if len(g) > 1]
    for group in several:
        got = session.run({n: join([f[n] for f, _ in group]) for n in inputs}, timeout=60.0)
        for i, (feeds, results) in enumerate(group):
            for name, want in results.items():
                if not same(part(name, got[name], i, len(group)), want):
                    return f"{name}, part {i} at { {n: v.shape for n, v in feeds.items()} }"
    return "" if several else None


def mapped(model: ModelProto, seconds: float) -> str | None:
    """Returns what is wrong with `vmap` over all inputs."""
    inputs = [v.name for v in required_inputs(model.graph)]
    made = onnxgrad.vmap(model, inputs, timeout=seconds)
    return by_rows(model, made, inputs, np.stack, lambda name, y, i, n: y[i])


def opened(model: ModelProto, seconds: float) -> str | None:
    """Returns what is wrong with `open-batch`; None if not every input is opened."""
    first = next(iter(required_inputs(model.graph)), None)
    dims = first.type.tensor_type.shape.dim if first is not None else ()
    batch = dims[0].dim_value if dims else 0
    made = onnxgrad.open_batch(model, batch=batch or None, timeout=seconds)
    sizes = {v.name: v.type.tensor_type.shape.dim for v in made.graph.input}
    inputs = [name for name, dims in sizes.items() if dims and dims[0].dim_param == "batch"]
    before = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.output}
    after = {v.name: [d.dim_param for d in v.type.tensor_type.shape.dim] for v in made.graph.output}

    def part(name: str, y: Any, i: int, n: int) -> Any:
        if "batch" not in after[name]:
            return y  # the same for each row
        axis = after[name].index("batch")
        own = np.split(y, n, axis)[i]
        return own if own.ndim == before[name] else own.squeeze(axis)

    return by_rows(model, made, inputs, np.concatenate, part)
