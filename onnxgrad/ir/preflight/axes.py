"""Axes and permutations that operands do not have: onnx's inference only gives up on them, the
runtime refuses them.
"""

from __future__ import annotations

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program

# operators whose `axis` counts the first operand's axes -> how many more there may be
_BY_AXIS: dict[str, int] = {
    **dict.fromkeys(
        ["ArgMax", "ArgMin", "Compress", "Concat", "Gather", "GatherElements", "Hardmax",
         "LayerNormalization", "LogSoftmax", "LpNormalization", "RMSNormalization", "Scatter",
         "ScatterElements", "Softmax", "Split", "TopK", "Unique"], 0,
    ),
    "Flatten": 1, "OneHot": 1,
}  # fmt: skip


def check_axes(program: Program, where: str) -> None:
    """Raises InputError for an attribute that names an axis which an operand of known rank
    lacks.
    """
    for block in [program.main, *program.functions.values()]:
        for b in block.walk():
            if b.domain == "" and (b.op in _BY_AXIS or b.op == "Transpose"):
                _check(b, where)


def _check(b: Binding, where: str) -> None:
    operand = b.operand(0)
    rank = None if operand is None else operand.rank
    if not rank:  # unknown, or a scalar, where operators differ
        return
    if b.op == "Transpose":
        perm = b.attrs.get("perm")
        if isinstance(perm, tuple) and sorted(perm) != list(range(rank)):
            raise InputError(
                f"{where}: {b.op} '{b.node.name[:80]}': {str(perm)[:60]} orders no {rank} axes"
            )
        return
    axis, most = b.attrs.get("axis"), rank + _BY_AXIS[b.op]
    if isinstance(axis, int) and not -most <= axis < most:
        raise InputError(
            f"{where}: {b.op} '{b.node.name[:80]}': its operand of {rank} axes has no axis {axis}"
        )
