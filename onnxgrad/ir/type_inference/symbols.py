"""Symbols carried through shape arithmetic: what an int64 vector says about sizes."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Dim, same_dim
from onnxgrad.ir.var import Var

# no tensor has a higher rank, so that a longer vector is no shape; files declare vectors of 2^40
# elements
_LONGEST = 1 << 10
# beyond these, machines wrap around
INT_LIMITS: dict[int, int] = {TensorProto.INT32: 1 << 31, TensorProto.INT64: 1 << 63}

# how many bindings of shape arithmetic are followed upwards
_DEPTH = 24


def sizes(var: Var) -> tuple[Dim, ...] | None:
    """The elements of a small integer vector (or scalar) as dimensions; None when its length is
    unknown.
    """
    return _Vectors().sizes(var, _DEPTH)


class _Vectors:
    """Follows integer vectors upwards, each once: operands that repeat would double the way at
    every binding.
    """

    def __init__(self) -> None:
        self.known: dict[Var, tuple[Dim, ...] | None] = {}

    def sizes(self, var: Var, depth: int) -> tuple[Dim, ...] | None:
        ints = var.ints
        if ints is not None:
            return ints if len(ints) <= _LONGEST else None
        # through bool or a float a number may change
        if var.dtype not in (TensorProto.INT64, TensorProto.INT32) or (var.rank or 0) > 1:
            return None
        b = var.definition
        if b is None or b.domain != "" or depth == 0:
            return _unknown(var)
        if var not in self.known:
            found = self._results(b, depth - 1)
            self.known[var] = (
                _unknown(var)
                if found is None or len(found) > _LONGEST
                else _within(found, var.dtype)
            )
        return self.known[var]

    def _results(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        x = b.operand(0)
        if x is None or b.has_refs:
            return None
        if b.op in _KEPT:
            return self.sizes(x, depth) if _KEPT[b.op](b, x) else None
        if b.op in _PICKED:
            return _PICKED[b.op](self.sizes(x, depth), b)
        if b.op == "Shape":
            return (
                None
                if x.shape is None
                else x.shape[b.attr("start", 0) : b.attr("end", len(x.shape))]
            )
        if b.op == "Concat":
            return self._concatenated(b, depth)
        if b.op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
            return self._arithmetic(b, depth)
        return None

    def _concatenated(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        dims: list[Dim] = []
        for v in b.inputs:
            part = None if v is None else self.sizes(v, depth)
            if part is None or len(dims) + len(part) > _LONGEST:
                return None
            dims.extend(part)
        return tuple(dims)

    def _arithmetic(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        x, y = b.operand(0), b.operand(1)
        if x is None or y is None or len(b.inputs) != 2:
            return None
        xs, ys = self.sizes(x, depth), self.sizes(y, depth)
        if xs is None or ys is None:
            return None
        if len(xs) != len(ys):
            if len(xs) == 1:
                xs *= len(ys)
            elif len(ys) == 1:
                ys *= len(xs)
            else:
                return None
        return tuple(calculate(b.op, p, q) for p, q in zip(xs, ys, strict=True))


def _within(dims: tuple[Dim, ...], dtype: int) -> tuple[Dim, ...]:
    limit = INT_LIMITS[dtype]
    return tuple(None if isinstance(d, int) and not -limit <= d < limit else d for d in dims)


def _unknown(var: Var) -> tuple[Dim, ...] | None:
    if var.shape == ():
        return (None,)
    if var.shape is not None and len(var.shape) == 1 and isinstance(var.shape[0], int):
        return (None,) * var.shape[0] if var.shape[0] <= _LONGEST else None
    return None


def _gathered(source: tuple[Dim, ...] | None, b: Binding) -> tuple[Dim, ...] | None:
    index = b.operand(1)
    ints = None if index is None else index.ints
    if source is None or ints is None or any(not -len(source) <= i < len(source) for i in ints):
        return None
    return tuple(source[i] for i in ints)


def _sliced(source: tuple[Dim, ...] | None, b: Binding) -> tuple[Dim, ...] | None:
    bounds = [None if v is None else v.ints for v in (b.operand(1), b.operand(2))]
    steps = b.operand(4)
    step = (1,) if steps is None else steps.ints
    starts, ends = bounds
    if source is None or starts is None or ends is None or step is None:
        return None
    if not len(starts) == len(ends) == len(step) == 1 or step[0] == 0:
        return None
    if step[0] < 0 and starts[0] < -len(source):
        return None  # ONNX starts at the first element then, Python before it
    return source[slice(starts[0], ends[0] if ends[0] > -(1 << 62) else None, step[0])]


# operators that keep the elements of a vector in their order, where this holds
_KEPT: dict[str, Callable[[Binding, Var], bool]] = {
    "Identity": lambda b, x: x.rank in (0, 1),
    "Cast": lambda b, x: x.rank in (0, 1),
    "Squeeze": lambda b, x: x.rank in (0, 1),
    "Unsqueeze": lambda b, x: x.rank == 0,
    "Reshape": lambda b, x: b.out.rank in (0, 1),
}
# and those that pick some of them
_PICKED: dict[str, Callable[[tuple[Dim, ...] | None, Binding], tuple[Dim, ...] | None]] = {
    "Gather": _gathered,
    "Slice": _sliced,
}


def calculate(op: str, p: Dim, q: Dim) -> Dim:
    """What an operator of arithmetic makes of two sizes; None where that is not known."""
    if isinstance(p, int) and isinstance(q, int):
        if op == "Div":
            return p // q if q > 0 and p >= 0 else None
        return {"Add": p + q, "Sub": p - q, "Mul": p * q, "Max": max(p, q), "Min": min(p, q)}[op]
    if (op in ("Mul", "Div") and q == 1) or (op in ("Add", "Sub") and q == 0):
        return p
    if (op == "Mul" and p == 1) or (op == "Add" and p == 0):
        return q
    return p if op in ("Max", "Min") and same_dim(p, q) else None
