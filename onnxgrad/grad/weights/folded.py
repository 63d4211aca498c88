"""Finds constants that a tool computed from a weight: a derivative by the weight ignores them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from onnxgrad.grad.weights.evidence import declared, evidence, is_scripted, is_uniform
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, element_count
from onnxgrad.ir.var import Var
from onnxgrad.wording import some_of

# fewer elements may be equal by accident
_FEW = 8
# a product rounds once, and so does the factor that is recovered
_CLOSE = 1e-5
_SHOWN = 4


def folded_note(program: Program, requested: Iterable[str]) -> list[str]:
    """Returns a note on constants of the main graph that hold a `requested` weight transposed,
    reshaped or times a number, and are not requested themselves; none if there are none.

    A derivative by the weight ignores such a constant, which another tool, or an older version of
    this one, computed from it.
    """
    names = set(requested)
    weights: list[Var] = []
    rest: list[Var] = []
    for v in program.main.initializers.values():
        if v.dtype in FLOAT_DTYPES and v.initializer is not None and v.use_count:
            (weights if v.name in names else rest).append(v)
    pairs = [f"'{c.name}' is '{w.name}' {how}" for w, c, how in _folded(weights, rest)]
    if not pairs:
        return []
    return [
        "constants that a tool computed from weights stay as they are, and a derivative by the "
        f"weight ignores them: {some_of(pairs, _SHOWN)}; name them in wrt too, or write the file "
        "without folding"
    ]


def _folded(weights: Iterable[Var], rest: Iterable[Var]) -> Iterator[tuple[Var, Var, str]]:
    alike: dict[object, list[Var]] = {}
    for v in rest:
        alike.setdefault((v.dtype, element_count(v.shape or ())), []).append(v)
    for w in weights:
        size = element_count(w.shape or ())
        others = alike.get((w.dtype, size), ()) if size is not None and size >= _FEW else ()
        if not others:
            continue
        x = _elements(w)
        for c in () if is_uniform(x) else others:
            if (how := _made_from(x, _elements(c))) is not None:
                yield w, c, how


def _elements(v: Var) -> NDArray[np.float64]:
    assert v.initializer is not None
    return np.asarray(v.block.program.array(v.initializer)).astype(np.float64)


def _made_from(x: NDArray[np.float64], y: NDArray[np.float64]) -> str | None:
    """Returns how the elements of y follow from those of x, None if they do not."""
    size = np.linalg.norm(x)
    factor = float(np.linalg.norm(y) / size) if size else 0.0
    if not np.isfinite(factor) or not factor:
        return None
    z = np.squeeze(x)
    for order in permutations(range(z.ndim)) if z.ndim <= 4 else [tuple(range(z.ndim))]:
        moved = z.transpose(order).ravel()
        for sign in (factor, -factor):
            if _equal(sign * moved[:_FEW], y.ravel()[:_FEW]) and _equal(sign * moved, y.ravel()):
                by = "" if np.isclose(sign, 1.0, rtol=_CLOSE) else f"times {sign:.6g}"
                kept = order == tuple(range(z.ndim))
                place = "" if kept and x.shape == y.shape else "reshaped" if kept else "transposed"
                # two parameters that start equal are no evidence
                return " ".join(filter(None, (place, by))) or None
    return None


def _equal(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return bool(np.allclose(a, b, rtol=_CLOSE, atol=0.0))


def unnamed_note(program: Program, requested: Iterable[str]) -> list[str]:
    """Returns a note on `requested` vectors and numbers of the main graph to which an exporter gave
    a name of its own, although it keeps the names of parameters; none if there are none, or the
    file records from which parameter it computed them.

    Such a constant is a parameter that the exporter reshaped, or a number of the forward pass.
    """
    names = set(requested)
    kinds = {v.name: evidence(v.name) for v in program.main.vars() if v.name in names}
    if is_scripted(program.proto) or "parameter" not in kinds.values():
        return []
    recorded = declared(program.proto.graph)
    found = [
        f"'{v.name}' {v.type}"
        for v in program.main.vars()
        if kinds.get(v.name) == "constant"
        and v.name not in recorded
        and sum(n != 1 for n in v.shape or ()) <= 1
    ]
    if not found:
        return []
    return [
        f"{some_of(found, _SHOWN)}: the exporter kept no parameter's name, so that these may be "
        "constants of the forward pass, such as ones of a normalisation without affine parameters "
        "or torch.tensor([...]); exclude them by !NAME in wrt if they are"
    ]
