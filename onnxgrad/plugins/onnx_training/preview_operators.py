"""`ai.onnx.preview.training`: Gradient, Adam, Adagrad and Momentum in standard operators.

The three optimisers differ from PyTorch's: the count T of previous updates begins at 0, where Adam
corrects nothing, and Adagrad's decay begins at once. `lower-training` replaces the operators by
their definitions, in the schemas' notation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Literal

from onnxgrad.errors import InputError, InternalError
from onnxgrad.frozen import frozen
from onnxgrad.grad.backward_walk import backward
from onnxgrad.grad.opset.raising import OPSET
from onnxgrad.grad.paths import reaching
from onnxgrad.grad.registry import gradient_body
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.fill_and_reshape import filled_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass
from onnxgrad.passes.base import register as register_pass
from onnxgrad.rewrite.attempt import check, substitute
from onnxgrad.rewrite.trace import Trace
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, zeros


@frozen
class Standard(Optimizer):
    """The base class of the three optimisers. `at.step` is the operators' T, `at.learning_rate`
    their R. norm_coefficient adds its part of X to G. Attributes are rounded to the tensors' dtype,
    as those of an operator, and are not checked, because a file may contain any value.
    """

    norm_coefficient: float = 0.0

    def __post_init__(self) -> None:
        pass

    def _regularized(self, x: Tensor, g: Tensor, at: Moment) -> Tensor:
        return (
            g if self.norm_coefficient == 0 else float(_number(self.norm_coefficient, at)) * x + g
        )


@frozen
class StandardAdagrad(Standard):
    """H' = H + G^2; X' = X - R / (1 + T decay_factor) G / (sqrt(H') + epsilon)."""

    decay_factor: float = 0.0
    epsilon: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns H, the sum of the squared gradients."""
        return zeros(parameter, "h")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        r = at.rate / (1.0 + at.number(at.step) * _number(self.decay_factor, at))
        g = self._regularized(p, g, at)
        h = s["h"] + g * g
        return p - r * g / (at.math.Sqrt(h) + _number(self.epsilon, at)), {"h": h}


@frozen
class StandardAdam(Standard):
    """V' = alpha V + (1 - alpha) G; H' = beta H + (1 - beta) G^2; X' = X - R' V' / (sqrt(H') +
    epsilon).

    R' = R sqrt(1 - beta^T) / (1 - alpha^T), or R if T is 0. At the end, X' is reduced by the share
    norm_coefficient_post.
    """

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 0.0
    norm_coefficient_post: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns V and H, the means of the gradients and of their squares."""
        return zeros(parameter, "v", "h")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        alpha, beta, one, r = (
            _number(self.alpha, at),
            _number(self.beta, at),
            _number(1.0, at),
            at.rate,
        )
        g = self._regularized(p, g, at)
        v = s["v"] * alpha + g * (one - alpha)
        h = s["h"] * beta + g * g * (one - beta)
        # at 0 there is no correction, nor a division by zero
        count = at.math.Max(at.number(at.step), one)
        corrected = (
            r * at.math.Sqrt(one - at.math.Pow(beta, count)) / (one - at.math.Pow(alpha, count))
        )
        r = at.math.Where(at.math.Greater(at.step, 0), corrected, r)
        new = p - r * v / (at.math.Sqrt(h) + _number(self.epsilon, at))
        return new * (one - _number(self.norm_coefficient_post, at)), {"v": v, "h": h}


@frozen
class StandardMomentum(Standard):
    """V' = alpha V + beta G, beta 1 if T is 0; X' = X - R V'; nesterov: X' = X - R (G + alpha
    V').
    """

    alpha: float = 0.0
    beta: float = 0.0
    mode: Literal["standard", "nesterov"] = "standard"

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns V, the moving sum of the gradients."""
        return zeros(parameter, "v")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        alpha, r = _number(self.alpha, at), at.rate
        g = self._regularized(p, g, at)
        beta = at.math.Where(at.math.Greater(at.step, 0), _number(self.beta, at), _number(1.0, at))
        v = s["v"] * alpha + g * beta
        if self.mode == "nesterov":
            return p - (g + v * alpha) * r, {"v": v}
        return p - v * r, {"v": v}


def _number(value: float, at: Moment) -> Any:
    """Returns an attribute as a number with the tensors' dtype."""
    return numpy_dtype(at.dtype).type(value)


DOMAIN = "ai.onnx.preview.training"


@register_pass
@frozen
class LowerTraining(Pass):
    """Gradient, Adam, Adagrad, Momentum = their definitions in operators of the default
    domain.
    """

    name: ClassVar[str] = "lower-training"

    def run(self, program: Program, trace: Trace) -> None:
        """Replaces each of these bindings in the main graph. Raises InputError for a Gradient
        that cannot be formed.
        """
        block = program.main
        block.schedule()
        found = [b for b in block.bindings if b.domain == DOMAIN and b.op in _LOWER]
        if found:
            program.opsets.setdefault("", OPSET)  # a model of optimisers alone need not import it
        for b in found:
            if trace.stopped:
                return
            where = str(b)
            try:
                with emitting(block, share=True, sources=(b,), made_by="lower_training"):
                    results = _LOWER[b.op](b)
            except InternalError as e:
                raise InputError(
                    f"'{where}' cannot be expressed at opset {program.opset}: {e}"
                ) from e
            trace.fired("lower_training", where)
            pairs = zip(b.outputs, results, strict=True)
            mapping = {old: new for old, new in pairs if old is not None}
            check(mapping)
            substitute(mapping)
        if DOMAIN in program.opsets and not any(
            b.domain == DOMAIN for blk in program.blocks() for b in blk.bindings
        ):
            del program.opsets[DOMAIN]
            block.touch()


def _gradient(b: Binding) -> list[Var]:
    """Returns dy/dxs at the values of the operands. Forward values are reused if the operands are
    the xs themselves. Raises InputError.
    """
    block = b.block
    values = {v.name: v for v in block.vars()}
    names = [*(b.attr("xs") or ()), *(b.attr("zs") or ())]
    missing = [n for n in (*names, b.attr("y")) if n not in values]
    if missing:
        raise InputError(f"'{b}' names '{missing[0]}', which the graph does not have")
    if len(names) != len(b.inputs):
        raise InputError(f"'{b}' has {len(b.inputs)} operands for {len(names)} names in xs and zs")
    y, xs = values[b.attr("y")], [values[n] for n in b.attr("xs")]
    given = {values[n]: v for n, v in zip(names, b.inputs, strict=True)}
    if any(v is not own for own, v in given.items()):
        # the same graph from other values: a second copy of what lies between them and y
        between = reaching(block, [y])
        mapping: dict[Var, Var | None] = dict(given)
        copied = [
            f
            for f in block.bindings
            if f is not b and any(v in between and v not in given for v in f.outputs)
        ]
        clone_bindings([f for f in copied if f.domain != DOMAIN], block, mapping, prefix="at_")
        y = mapping.get(y) or y
        xs = [mapping.get(v) or v for v in xs]
    found = backward(block, {y: filled_like(y, 1.0)}, xs)
    return [found[v] if v in found else zeros_like(v) for v in xs]


def _updated(rule: type[Standard], *slots: str) -> Callable[[Binding], list[Var]]:
    """Returns a formula for operands (R, T, X1.., G1.., state1.., ...), each a list of tensors,
    with results X1.., state1.., ....
    """

    def lower(b: Binding) -> list[Var]:
        operands = [v for v in b.inputs if v is not None]
        rate, t, lists = operands[0], operands[1], operands[2:]
        count = 2 + len(slots)
        n = len(lists) // count
        if n * count != len(lists) or n == 0:
            raise InputError(f"'{b}' has {len(lists)} tensors, not {count} for each one to update")
        optimizer = rule(
            **{f.name: b.attr(f.name, 0.0) for f in fields(rule) if f.name not in _NO_ATTRIBUTES}
        )
        new = []
        for i in range(n):
            x, g, *states = (lists[k * n + i] for k in range(count))
            at = Moment(rate, t, op, x.dtype)
            x_new, kept = optimizer.update(x, g, dict(zip(slots, states, strict=True)), at)
            new.append((x_new, *(kept[name] for name in slots)))
        return [new[i][k] for k in range(len(new[0])) for i in range(n)]

    return lower


# R is an operand, and the operators only minimise
_NO_ATTRIBUTES = frozenset({"lr", "maximize"})

_LOWER: dict[str, Callable[[Binding], list[Var]]] = {
    "Gradient": _gradient,
    "Adagrad": _updated(StandardAdagrad, "h"),
    "Adam": _updated(StandardAdam, "v", "h"),
    "Momentum": _updated(StandardMomentum, "v"),
}


def register() -> None:
    """Registers the gradients of the three optimisers."""
    for name in ("Adagrad", "Adam", "Momentum"):
        gradient_body(
            f"{DOMAIN}::{name}",
            lambda *, binding: tuple(_LOWER[binding.op](binding)),
            notes="through its definition",
        )
