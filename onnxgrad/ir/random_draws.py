"""Does a binding draw random numbers? Two such with equal operands are still two different
draws.
"""

from __future__ import annotations

from onnxgrad.ir.binding import Binding

RANDOM_OPS = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)


def draws(b: Binding) -> bool:
    """Whether the binding itself draws; what its nested blocks do is asked of their bindings."""
    return b.domain == "" and (b.op in RANDOM_OPS or (b.op == "Dropout" and _trains(b)))


def _trains(dropout: Binding) -> bool:
    """Before opset 7 an attribute says that it does not; from 7 to 11 it never does; then an
    operand may say so.
    """
    if dropout.version < 7:
        return not dropout.attr("is_test")
    return dropout.version >= 12 and dropout.operand(2) is not None
