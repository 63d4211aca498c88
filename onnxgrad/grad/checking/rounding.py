"""The second look at a gradient that is off: whether float64 has it right, and rounding explains
onnxruntime's.

The gradient graph itself in float64 has to agree ten times better, and onnxruntime with that up to
what rounding at every step does, which random rounding shows (Parker, Monte Carlo arithmetic,
1997).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import Unsupported
from onnxgrad.grad.checking.differences import Yardstick
from onnxgrad.grad.checking.report import ValueCheck
from onnxgrad.grad.checking.vectors import Flat, flat
from onnxgrad.grad.differentiation import Gradient
from onnxgrad.ir.program import Program
from onnxgrad.verify.reference.in_child import Float64

# relative to the value's own gradient, by the coarsest float type on the way
TOLERANCES: dict[int, float] = {
    TensorProto.DOUBLE: 1e-6,
    TensorProto.FLOAT: 1e-4,
    TensorProto.FLOAT16: 5e-2,
    TensorProto.BFLOAT16: 3e-1,
}
_UNITS: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
# how many times the largest effect of some trials of random rounding onnxruntime may be off
_NOISES, _TRIALS = 10, 3


def coarsest(program: Program) -> int:
    """The coarsest float type among the model's values."""
    dtypes = {v.dtype for v in program.main.vars()} & set(TOLERANCES)
    return max(dtypes, key=TOLERANCES.__getitem__, default=TensorProto.FLOAT)


class _Rounding:
    """The gradient graph in float64, and what rounding at every step does to it."""

    def __init__(
        self, graph: ModelProto, given: Mapping[str, Any], adjoints: Mapping[str, str], unit: float
    ) -> None:
        reference = Float64(graph)
        self.adjoints = adjoints
        wanted = list(adjoints.values())
        self.exact = reference.run(given, outputs=wanted)
        self.rounded = [
            reference.run(given, outputs=wanted, jitter=unit, everywhere=True, seed=i)
            for i in range(_TRIALS)
        ]

    def judge(self, check: ValueCheck, direction: Flat, g: Flat, by: Yardstick) -> ValueCheck:
        """The check with float64's error where onnxruntime's is rounding; unchanged where it is
        not.
        """

        def along(values: Mapping[str, Any]) -> float:
            return float(np.sum(flat(values[self.adjoints[check.name]]) * direction))

        exact = along(self.exact)
        noise = max(abs(along(r) - exact) for r in self.rounded)
        size = by.size(g)
        error = abs(exact - check.difference) / size
        if (
            not error <= by.limit / 10
            or not abs(check.gradient - exact) <= _NOISES * noise + by.limit * size
        ):
            return check
        got = check.gradient
        return replace(
            check,
            gradient=exact,
            error=error,
            why=f"in float64; rounding in onnxruntime moves it by {check.error:.0e} to {got:.6g}",
        )


def second_look(
    checks: list[ValueCheck], directions: Mapping[str, Flat], gradients: Mapping[str, Flat],
    by: Yardstick, graph: ModelProto, given: Mapping[str, Any], found: Gradient,
) -> list[ValueCheck]:  # fmt: skip
    """The checks, those that are off judged by float64; as they are where the reference cannot
    run the gradient.
    """
    doubtful = [c for c in checks if by.is_off(c)]
    if not doubtful:
        return checks
    try:
        leg = _Rounding(graph, given, found.adjoints, _UNITS[coarsest(found.program)])
    except Unsupported:
        return checks
    return [
        leg.judge(c, directions[c.name], gradients[c.name], by) if c in doubtful else c
        for c in checks
    ]
