"""Gates of recurrent layers: computed again, or kept by the forward run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxgrad.errors import InputError
from onnxgrad.grad.rules._common import as_number, scaled
from onnxgrad.grad.rules.recurrent._sweep import Recurrent
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import filled_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

Slope = Callable[[Var, Var, float, float], Var]
Value = Callable[[Var, float, float], Var]


def _piecewise(mask: Var, then: float | Var, otherwise: float | Var, like: Var) -> Var:
    """Where of numbers, in the dtype of `like`."""
    both = (constant(v, like.dtype) if isinstance(v, float) else v for v in (then, otherwise))
    return op.Where(mask, *both)


# no default: ONNX would have 1, onnxruntime takes 0
_UNSAID = math.nan
# (value of z, slope of (z, value), default alpha, default beta, takes alpha, takes beta); the kinks
# as in activation.py
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


# their slope follows from their value alone
_BY_VALUE = frozenset({"sigmoid", "tanh", "relu", "hardsigmoid"})


@dataclass(frozen=True)
class Gate:
    """One activation with its numbers; `clip` bounds what enters it, 0 does not."""

    name: str
    alpha: float
    beta: float
    clip: float

    def __call__(self, z: Var) -> Var:
        """The gate's value."""
        inner = op.Clip(z, -self.clip, self.clip) if self.clip else z
        return _ACTIVATIONS[self.name][0](inner, self.alpha, self.beta)

    def slope(self, z: Var) -> Var:
        """The derivative of the value by `z`; 0 outside of the bounds, 1 times the activation's
        on them.
        """
        inner = op.Clip(z, -self.clip, self.clip) if self.clip else z
        slope = _ACTIVATIONS[self.name][1](inner, self(z), self.alpha, self.beta)
        if self.clip:
            slope = op.Where(op.LessOrEqual(op.Abs(z), self.clip), slope, 0.0)
        return slope

    @property
    def is_by_value(self) -> bool:
        """Whether `slope_at` returns the slope."""
        return not self.clip and self.name in _BY_VALUE

    def slope_at(self, y: Var) -> Var:
        """The derivative where the value is `y`."""
        return _ACTIVATIONS[self.name][1](y, y, self.alpha, self.beta)


def gates(
    binding: Binding, defaults: Sequence[str], directions: int, unclipped: int = -1
) -> list[list[Gate]]:
    """The gates of each direction. Alphas and betas are handed out in order to the activations that
    take them.

    `unclipped`: the position within a direction that `clip` does not reach (LSTM's cell output, as
    onnxruntime does). Raises InputError for an activation that ONNX does not know, or without the
    numbers that it needs.
    """
    # RNN's schema gives two functions by default even if one direction needs one
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
                f"'{binding}' has the activation '{name}' without its numbers, where ONNX and "
                f"onnxruntime differ: give {lacking}"
            )
        found.append(Gate(name, alpha, beta, 0.0 if i % len(defaults) == unclipped else clip))
    if len(found) != len(defaults) * directions:
        raise InputError(
            f"'{binding}' has {len(found)} activations where {len(defaults) * directions} are "
            "needed"
        )
    return [found[i : i + len(defaults)] for i in range(0, len(found), len(defaults))]


# multiplications per step from which on the operator is replaced
_WORTH = 1 << 17
# an open batch, or an open number of inputs, counts as this many
_OPEN = 16


def is_kept(cell: Recurrent, kinds: Sequence[Sequence[Gate]]) -> bool:
    """Whether a Scan is to take the operator's place: it has work enough, every slope follows from
    what is kept, and no row ends early.

    False for an operator that checkpointing keeps and reads through a stand-in.
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
    """Let the operator's readers read Y from `series`, the hidden state after each step (T, B, H)
    by direction, and its final states from `finals`, (B, H) by direction.
    """
    binding = cell.binding
    parts = [op.Unsqueeze(v, [1]) for v in series]
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    results = [op.Transpose(y, perm=[2, 0, 1, 3]) if cell.layout else y]
    results += [cell.stacked(states, state=True) for states in finals]
    for out, new in zip(binding.outputs, results):
        if out is not None:
            returned = out.returned
            binding.block.replace(out, new)
            if not returned:
                out.swap_names(new)
