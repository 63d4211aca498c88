"""The second look at a gradient that is off: whether it is right in float64, so that rounding
explains onnxruntime's result.

The gradient graph, run in float64, must agree with the differences ten times better, except for the
rounding of constants that the gradient adds to the model (1/6 in float32). onnxruntime must agree
with that run, except for rounding at every step. Random rounding measures both effects (Parker,
Monte Carlo arithmetic, 1997).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxgrad.errors import Unsupported
from onnxgrad.grad.checking.differences import NO_SIZE, Trial, on_one_scale
from onnxgrad.grad.checking.report import TOO_SMALL, ValueCheck
from onnxgrad.grad.checking.vectors import Vector, flat, norm, total, vector
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, graphs_of
from onnxgrad.ir.storage.shared_weights import IN_MEMORY, Files
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.verify.reference.client import Float64

# errors relative to the value's own gradient, by the coarsest float type on its path
TOLERANCES: dict[int, float] = {
    TensorProto.DOUBLE: 1e-6,
    TensorProto.FLOAT: 1e-4,
    TensorProto.FLOAT16: 5e-2,
    TensorProto.BFLOAT16: 3e-1,
}

# onnxruntime may round this many times as much as some trials of random rounding: a sum of n terms
# is off by up to sqrt(n) times the rounding of its terms, and kernels sum up 256
_NOISES, _TRIALS = 10, 3
# the largest of as many trials may be a half of what another one shows, where kinks are passed
_SPREAD = 2

# float64 may be off by this many times the largest effect of some trials in which every constant is
# off by a full unit, up or down
_CONSTANTS = 2

# a gradient below this part of the model's largest may be rounding alone
_FLOOR = 1e-3


class Rounding:
    """The gradient graph in float64, and the effect of rounding at every step."""

    def __init__(
        self,
        graph: ModelProto,
        given: Mapping[str, Any],
        adjoints: Mapping[str, str],
        source: ModelProto,
        files: Files = IN_MEMORY,
    ) -> None:
        self.files = files
        self.graph, self.source = graph, source
        self.given, self.adjoints = given, adjoints
        self._wanted = list(adjoints.values())
        self.exact: Mapping[str, Any] | None = None
        self._rounded: dict[float, list[Mapping[str, Any]]] = {}
        self._shifted: list[Mapping[str, Any]] | None = None

    @cached_property
    def reference(self) -> Float64:
        """The gradient graph in float64."""
        return Float64(self.files.runnable(self.graph))

    def look(
        self, check: ValueCheck, trials: Sequence[Trial], g: Vector, dtype: int, largest: float
    ) -> ValueCheck:
        """Returns the check of a value that is off: with the error in float64 if rounding explains
        the error in onnxruntime, else unchanged.

        largest: the norm of the model's largest gradient, the scale of the comparison if the
        reference cannot run the gradient graph.
        """
        if self.files.folder is not None:  # one gradient at a time: all of them are large
            self._wanted = [self.adjoints[check.name]]
            self.exact, self._shifted = None, None
            self._rounded.clear()
        try:
            self.exact = self.exact or self._run(self.reference)
            self.rounded(UNITS[dtype])
        except Unsupported:
            small = norm(g) < _FLOOR * largest
            return _small(check) if small and _near(trials, _FLOOR * largest) else check
        return self.judge(check, trials, dtype)

    def _run(self, reference: Float64, **options: Any) -> Mapping[str, Any]:
        apart = self.files.folder
        return reference.run(self.given, outputs=self._wanted, apart=apart, **options)

    def rounded(self, jitter: float) -> list[Mapping[str, Any]]:
        """Returns the gradients if every step rounds at random, by so much of its result."""
        if jitter not in self._rounded:
            self._rounded[jitter] = [
                self._run(self.reference, jitter=jitter, deployed=True, seed=i)
                for i in range(_TRIALS)
            ]
        return self._rounded[jitter]

    def shifted(self) -> list[Mapping[str, Any]]:
        """Returns the gradients if the constants that the gradient adds are off by one unit."""
        if self._shifted is None:
            shifted = (
                constants_shifted(self.graph, self.source, i, self.files) for i in range(_TRIALS)
            )
            self._shifted = [
                self._run(Float64(self.files.runnable(model))) for model in shifted if model
            ]
        return self._shifted

    def judge(self, check: ValueCheck, trials: Sequence[Trial], dtype: int) -> ValueCheck:
        """Returns the check as `look` does, from the results of `_run`."""
        name = self.adjoints[check.name]
        exact = vector((self.exact or {})[name])
        size = max(norm(exact), NO_SIZE)
        gots = [total(exact * t.line.direction) for t in trials]

        def effect(jitter: float) -> float:
            # the norm covers all directions: along a single one, rounding errors may cancel
            return max(norm(vector(r[name]) - exact) for r in self.rounded(jitter))

        noise = _NOISES * effect(UNITS[dtype])
        closer = [replace(t, got=g, limit=t.limit / 10, size=size) for t, g in zip(trials, gots)]
        again = on_one_scale([_looked_at_closely(t) for t in closer])
        if any(t.off for t in again):
            moved = [norm(vector(r[name]) - exact) for r in self.shifted()]
            more = _CONSTANTS * max(moved, default=0.0) / size
            again = [replace(t, limit=t.limit + more) for t in again]

        def explained(noise: float) -> bool:
            pairs = zip(trials, again, strict=True)
            return all(abs(old.got - t.got) <= noise + old.limit * t.size for old, t in pairs)

        if any(t.off for t in again):
            return check
        if not explained(noise):  # beside many kinks, ten times the rounding has other effects
            noise = max(noise, _SPREAD * effect(_NOISES * UNITS[dtype]))
            if not explained(noise):
                return check
        # none is off at a tenth of the tolerance; agreement counts at the tolerance itself
        known = (replace(t, limit=max(t.limit, old.limit)) for old, t in zip(trials, again))
        shown = [t for t in known if t.shown and t.error <= t.limit]
        if not shown or noise > size:  # no result of onnxruntime would be off
            return _small(check)
        worst = max(shown, key=lambda t: t.error)
        got = next(old.got for old in trials if old.line is worst.line)
        return replace(
            check,
            gradient=worst.got,
            difference=worst.slope.value,
            error=worst.error,
            tolerance=max(check.tolerance or 0.0, worst.limit),
            why=f"in float64; rounding in onnxruntime moves it by {check.error:.0e} to {got:.6g}",
        )


def rounding_of(
    reference: Float64, feeds: Mapping[str, Any], output: str, expected: Any, dtype: int
) -> float:
    """Returns how far rounding at every step may move an element of an output in onnxruntime; 0 if
    the reference cannot tell.
    """
    options: Any = {"outputs": [output], "jitter": UNITS[dtype], "deployed": True}
    try:
        runs = [reference.run(feeds, seed=i, **options)[output] for i in range(_TRIALS)]
    except Unsupported:
        return 0.0
    return _NOISES * max(float(np.abs(flat(r) - flat(expected)).max(initial=0.0)) for r in runs)


def _looked_at_closely(trial: Trial) -> Trial:
    """Returns the trial; if it is off, with a slope from smaller and smaller steps. The given slope
    may be a one-sided difference beside a kink that happened to agree with onnxruntime.
    """
    if not trial.off:
        return trial
    return replace(trial, slope=trial.line.slope(trial.limit * trial.size, trial.limit))


def _near(trials: Sequence[Trial], size: float) -> bool:
    return not any(replace(t, size=size).off for t in trials)


def _small(check: ValueCheck) -> ValueCheck:
    return replace(check, error=0.0, judged=False, why=TOO_SMALL)


def coarsest(program: Program) -> int:
    """Returns the coarsest float type among the model's values."""
    return int(_coarser([v.dtype for v in program.main.vars()], TensorProto.FLOAT))


def coarsest_on_the_way(program: Program, outputs: Mapping[str, str]) -> dict[str, int]:
    """Returns for each value the coarsest float type among the computations on which its output
    depends, in nested graphs and functions too. Values stored in the file do not count, because
    they are not rounded again.
    """
    known: dict[Var, int | None] = {}
    program.main.schedule()
    for binding in program.main.bindings:
        types = [known.get(v) for v in binding.reads()]
        inside = (b for b in _inside(program, binding) if b.op != "Constant")
        types += [v.dtype for b in inside for v in b.outputs if v is not None]
        made = [v for v in binding.outputs if v is not None]
        known.update(dict.fromkeys(made, _coarser(types, None)))
    found = {v.name: (known.get(v), v.dtype or TensorProto.FLOAT) for v in program.main.vars()}
    return {name: _coarser([found[out][0]], found[out][1]) for name, out in outputs.items()}


def _inside(program: Program, binding: Binding) -> Iterator[Binding]:
    """Yields the binding, and the bindings of its nested graphs and of the functions they call."""
    todo, seen = [binding], set()
    while todo:
        yield (one := todo.pop())
        todo += [b for nested in one.blocks.values() for b in nested.bindings]
        key = called(one)
        if key is not None and key not in seen:
            seen.add(key)
            todo += program.functions[key].bindings


def _coarser(dtypes: Iterable[int | None], default: Any) -> Any:
    """Returns the coarsest of these float types; the default if there is none."""
    known = [t for t in dtypes if t in TOLERANCES]
    return max(known, key=TOLERANCES.__getitem__, default=default)


# ---- constants that a gradient adds to a model, shifted by what rounding may do ------------------


# the relative rounding of one number
UNITS: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}

# numbers with few binary digits, such as 0.5 and 10, were not rounded
_EXACT = 2.0**8


def constants_shifted(
    graph: ModelProto, source: ModelProto, seed: int, files: Files = IN_MEMORY
) -> ModelProto | None:
    """Returns the gradient `graph` of `source` with every rounded number off by one unit of its
    type, up or down at random; None if there is no such number.

    Only constants that `source` lacks count. Weights that a rewrite transposed or negated were not
    rounded again. The result is meant for the float64 reference.
    """
    theirs = dict(_constants(source))
    numbers = _magnitudes(files.elements(t) for t in theirs.values() if t.data_type in UNITS)
    shifted = copy_of(graph)
    rng, found = np.random.default_rng(seed), False
    for name, tensor in _constants(shifted):
        if name in theirs or tensor.data_type not in UNITS:
            continue
        values = np.asarray(files.elements(tensor)).astype(np.float64)
        mantissa = np.frexp(values)[0] * _EXACT
        rounded = np.isfinite(values) & (mantissa != np.round(mantissa))
        rounded &= ~np.isin(np.abs(values), numbers)
        if rounded.any():
            signs = rng.choice([-1.0, 1.0], values.shape)
            moved = values * (1.0 + np.where(rounded, signs * UNITS[tensor.data_type], 0.0))
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
            found = True
    return shifted if found else None


def _magnitudes(arrays: Iterable[Array]) -> np.ndarray[Any, Any]:
    return np.unique(
        np.abs(np.concatenate([np.zeros(1), *(v.ravel().astype(float) for v in arrays)]))
    )


def _constants(model: ModelProto) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    """Yields the tensors of initializers and Constants, each with its function and name."""
    yield from _of_graph("", model.graph)
    for function in model.functions:
        yield from _of_nodes(f"{function.domain}::{function.name}", function.node)


def _of_graph(where: str, graph: GraphProto) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    for tensor in graph.initializer:
        yield (where, tensor.name), tensor
    yield from _of_nodes(where, graph.node)


def _of_nodes(
    where: str, nodes: Iterable[NodeProto]
) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    for node in nodes:
        for nested in graphs_of(node):
            yield from _of_graph(where, nested)
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                yield (where, node.output[0]), attribute.t
