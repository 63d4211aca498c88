"""Gates of recurrent layers: computed again, or stored by the forward run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.rules._common import as_number, redirect
from onnxgrad.grad.rules.recurrent._sweep import Recurrent
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import scaled
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import filled_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted

Slope = Callable[[Var, Var, float, float], Var]
Value = Callable[[Var, float, float], Var]


def _piecewise(mask: Var, then: float | Var, otherwise: float | Var, like: Var) -> Var:
    """Where of two numbers, in the dtype of `like`."""
    both = (constant(v, like.dtype) if isinstance(v, float) else v for v in (then, otherwise))
    return op.Where(mask, *both)


# no default: ONNX's is 1, onnxruntime's is 0
_UNSAID = math.nan
# (value of z, slope of (z, value), default alpha, default beta, takes alpha, takes beta); slopes at
# kinks are those of activations.py
_ACTIVATIONS: dict[str, tuple[Value, Slope, float, float, bool, bool]] = {
    "sigmoid": (
        lambda z, a, b: op.Sigmoid(z),
        lambda z, y, a, b: y * (1.0 - y),
        0.0,
        0.0,
        False,
        False,
    ),
    "tanh": (lambda z, a, b: op.Tanh(z), lambda z, y, a, b: 1.0 - y * y, 0.0, 0.0, False, False),
    "relu": (
        lambda z, a, b: op.Relu(z),
        lambda z, y, a, b: as_number(op.Greater(y, 0.0), z),
        0.0,
        0.0,
        False,
        False,
    ),
    "affine": (
        lambda z, a, b: scaled(z, a) if b == 0.0 else scaled(z, a) + b,
        lambda z, y, a, b: filled_like(z, a),
        _UNSAID,
        0.0,
        True,
        True,
    ),
    "leakyrelu": (
        lambda z, a, b: op.LeakyRelu(z, alpha=a),
        lambda z, y, a, b: _piecewise(op.Greater(z, 0.0), 1.0, a, z),
        0.01,
        0.0,
        True,
        False,
    ),
    "thresholdedrelu": (
        lambda z, a, b: op.Where(op.Greater(z, a), z, 0.0),
        lambda z, y, a, b: as_number(op.Greater(z, a), z),
        1.0,
        0.0,
        True,
        False,
    ),
    "scaledtanh": (
        lambda z, a, b: scaled(op.Tanh(scaled(z, b)), a),
        lambda z, y, a, b: (1.0 - op.Tanh(scaled(z, b)) * op.Tanh(scaled(z, b))) * (a * b),
        _UNSAID,
        _UNSAID,
        True,
        True,
    ),
    "hardsigmoid": (
        lambda z, a, b: op.HardSigmoid(z, alpha=a, beta=b),
        lambda z, y, a, b: _piecewise(op.And(op.Greater(y, 0.0), op.Less(y, 1.0)), a, 0.0, z),
        0.2,
        0.5,
        True,
        True,
    ),
    "elu": (
        lambda z, a, b: op.Elu(z, alpha=a),
        lambda z, y, a, b: _piecewise(op.Greater(z, 0.0), 1.0, y + a, z),
        1.0,
        0.0,
        True,
        False,
    ),
    "softsign": (
        lambda z, a, b: op.Softsign(z),
        lambda z, y, a, b: op.Reciprocal((op.Abs(z) + 1.0) * (op.Abs(z) + 1.0)),
        0.0,
        0.0,
        False,
        False,
    ),
    "softplus": (
        lambda z, a, b: op.Softplus(z),
        lambda z, y, a, b: op.Sigmoid(z),
        0.0,
        0.0,
        False,
        False,
    ),
}


# activations whose slope is a function of their value
_BY_VALUE = frozenset({"sigmoid", "tanh", "relu", "hardsigmoid"})


@frozen
class Gate:
    """One activation with its parameters; `clip` bounds its operand, and 0 means no bounds."""

    name: str
    alpha: float
    beta: float
    clip: float

    def __call__(self, z: Var) -> Var:
        """The gate's value."""
        inner = op.Clip(z, -self.clip, self.clip) if self.clip else z
        return _ACTIVATIONS[self.name][0](inner, self.alpha, self.beta)

    def slope(self, z: Var) -> Var:
        """Returns the derivative of the value by `z`: 0 outside the bounds, the activation's slope
        on them.
        """
        inner = op.Clip(z, -self.clip, self.clip) if self.clip else z
        slope = _ACTIVATIONS[self.name][1](inner, self(z), self.alpha, self.beta)
        if self.clip:
            slope = op.Where(op.LessOrEqual(op.Abs(z), self.clip), slope, 0.0)
        return slope

    @property
    def is_by_value(self) -> bool:
        """Whether `slope_at` can compute the slope."""
        return not self.clip and self.name in _BY_VALUE

    def slope_at(self, y: Var) -> Var:
        """Returns the derivative at the point where the value is `y`."""
        return _ACTIVATIONS[self.name][1](y, y, self.alpha, self.beta)


def gates(
    binding: Binding, defaults: Sequence[str], directions: int, unclipped: int = -1
) -> list[list[Gate]]:
    """Returns the gates of each direction. Alphas and betas are assigned in order to the
    activations that take them.

    `unclipped`: the position within a direction that `clip` does not apply to (LSTM's cell output,
    as in onnxruntime). Raises InputError if ONNX does not define an activation, or if its
    parameters are missing.
    """
    # RNN's schema has two functions by default, even for one direction
    names = list(binding.attr("activations", None) or list(defaults) * directions)[
        : len(defaults) * directions
    ]
    alphas, betas = (iter(binding.attr(f"activation_{n}", None) or ()) for n in ("alpha", "beta"))
    clip = float(binding.attr("clip", None) or 0.0)
    found: list[Gate] = []
    for i, raw in enumerate(names):
        name = (raw.decode() if isinstance(raw, bytes) else raw).lower()
        if name not in _ACTIVATIONS:
            raise InputError(
                f"'{binding}' has the activation '{raw}', which ONNX does not define: "
                "it has no gradient"
            )
        _, _, alpha, beta, takes_alpha, takes_beta = _ACTIVATIONS[name]
        alpha = float(next(alphas, alpha)) if takes_alpha else alpha
        beta = float(next(betas, beta)) if takes_beta else beta
        if math.isnan(alpha) or math.isnan(beta):
            lacking = "activation_alpha" + ("" if name == "affine" else " and activation_beta")
            raise InputError(
                f"'{binding}' has the activation '{name}' without its parameters, for "
                f"which ONNX and onnxruntime have different defaults: set {lacking}"
            )
        found.append(Gate(name, alpha, beta, 0.0 if i % len(defaults) == unclipped else clip))
    if len(found) != len(defaults) * directions:
        raise InputError(
            f"'{binding}' has {counted(len(found), 'activation')} but needs "
            f"{len(defaults) * directions}"
        )
    return [found[i : i + len(defaults)] for i in range(0, len(found), len(defaults))]


# the least number of multiplications per step for which a Scan replaces the operator
_WORTH = 1 << 17
# the assumed size of an unknown batch, or number of inputs
_OPEN = 16


def is_kept(cell: Recurrent, kinds: Sequence[Sequence[Gate]]) -> bool:
    """Whether a Scan replaces the operator and stores its gates.

    This requires enough work per step, slopes that follow from the stored values, and rows of full
    length. False for an operator that checkpointing keeps and reads through a stand-in.
    """
    binding = cell.binding
    inputs = cell.x.shape[2] if cell.x.shape is not None else None
    batch, inputs = (n if isinstance(n, int) else _OPEN for n in (cell.batch, inputs))
    return (
        binding in binding.block.bindings
        and binding.operand(4) is None
        and all(gate.is_by_value for direction in kinds for gate in direction)
        and batch * cell.width * (inputs + cell.hidden) >= _WORTH
    )


def take_place(cell: Recurrent, series: Sequence[Var], finals: Sequence[Sequence[Var]]) -> None:
    """Redirects readers of the operator to the results of a Scan.

    series: the hidden state after each step, (T, B, H) by direction, read as Y; finals: the final
    states, (B, H) by direction.
    """
    binding = cell.binding
    parts = [op.Unsqueeze(v, [1]) for v in series]
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    results = [op.Transpose(y, perm=[2, 0, 1, 3]) if cell.layout else y]
    results += [cell.stacked(states, state=True) for states in finals]
    for out, new in zip(binding.outputs, results):
        if out is not None:
            redirect(out, new)
