"""The bounds of each operator: the values at which it starts to behave differently."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxgrad.verify.coverage import integers
from onnxgrad.verify.coverage.bounds import (
    ABOVE,
    ALL,
    AT,
    BELOW,
    BOTH,
    Side,
    Sides,
    around,
    centers_of,
    end_of,
    number,
    side_of,
    sides_of,
)
from onnxgrad.verify.coverage.counters import Array, Attributes, reduced

_MOST_BOXES = 64  # of an image whose overlaps are computed


def _at(*bounds: Callable[[Attributes], float], needed: int = BOTH, operand: int = 0) -> Sides:
    """Returns a function that compares an operand with bounds from the attributes."""
    return lambda attributes, operands, results: [
        side_of(operands[operand], bound(attributes), needed, operand) for bound in bounds
    ]


def _clip(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    given = [*operands[1:3], None, None][:2]
    bounds = [
        attributes.get(name) if value is None else value
        for name, value in zip(("min", "max"), given)
    ]
    return [
        end_of(operands[0], number(bound), least=least)
        for bound, least in zip(bounds, (True, False))
        if bound is not None
    ]


def _extreme(least: bool) -> Sides:
    """Returns the sides of a constant that is the least value of a result, or its largest."""

    def sides(
        attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
    ) -> list[Side]:
        (x, y), operand = operands, 0
        if x.size == 1 and y.size != 1:
            x, y, operand = y, x, 1
        if y.size == 1:
            return [end_of(x, number(y), operand, least=least)]
        words = "below its bound", "", "above its bound"
        return [Side(around(x, y), BOTH, words, centers_of(y), operand)]

    return sides


def _compare(needed: int, each: bool = False) -> Sides:
    """Returns the sides of a comparison: false, equal operands, true. `each`: every element of the
    smaller operand, a constant, has to be equal to one of the other.
    """

    def sides(
        attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
    ) -> list[Side]:
        x, y = map(np.asarray, operands)
        truth = np.asarray(results[0], bool)
        seen = sides_of(truth.size and not truth.all(), truth.any())
        first = y.size <= x.size
        larger, smaller = (x, y) if first else (y, x)
        if needed & AT:
            same = np.asarray(x == y)
            many = each and 1 < smaller.size <= _MOST_EACH and same.size > smaller.size
            seen |= AT * bool(reduced(same, smaller.shape).all() if many else same.any())
        row = smaller.ndim > 0 and smaller.size == smaller.shape[-1] > 1
        row = row and each and larger.ndim > 0 and larger.shape[-1] == smaller.size
        centers = tuple(smaller.reshape(-1).tolist()) if row else centers_of(smaller)
        words = "false", "equal", "true"
        return [Side(seen, needed, words, centers, int(not first), True, row)]

    return sides


def _truth(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    value = np.asarray(operands[0], bool)
    seen = sides_of(value.size and not value.all(), value.any())
    return [Side(seen, BOTH, ("false", "", "true"), (0, 1))]


def _infinite(
    attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
) -> list[Side]:
    x = operands[0]
    seen = sides_of((x == -np.inf).any(), (x == np.inf).any()) | AT * bool(np.isfinite(x).any())
    return [Side(seen, ALL, ("-inf", "finite", "inf"), (-np.inf, 0.0, np.inf), 0, False)]


def _nan(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    truth = np.asarray(results[0], bool)
    seen = sides_of(truth.size and not truth.all(), truth.any())
    return [Side(seen, BOTH, ("a number", "", "NaN"), (np.nan,), 0, False)]


def _matches(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    truth = np.asarray(results[0], bool)
    seen = sides_of(truth.size and not truth.all(), truth.any())
    return [Side(seen, BOTH, ("false", "", "true"))]


def _sign(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    x = np.asarray(operands[0])
    ends = (-1, 1) if x.dtype.kind == "i" else (1,) if x.dtype.kind == "u" else ()
    return [side_of(x, 0, ALL), *(side_of(x, end) for end in ends)]


def _ignored(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    index = attributes.get("ignore_index")
    if index is None:
        return []
    same = np.asarray(operands[1]) == index
    seen = AT * bool(same.any()) | ABOVE * bool((~same).any())
    return [
        Side(
            seen,
            AT | ABOVE,
            ("", f"the ignored {index}", f"other than {index}"),
            (index,),
            1,
            False,
        )
    ]


def _out_of_range(
    attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
) -> list[Side]:
    """Returns the sides of the first and the last index of OneHot."""
    depth = number(operands[1])
    x = np.asarray(operands[0])
    bounds = (-depth, 0, depth - 1) if x.dtype.kind != "u" else (depth - 1,)
    return [side_of(x, bound) for bound in bounds]


def _boxes(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns the sides of the thresholds of NonMaxSuppression: the scores, the overlaps, and the
    number of boxes.
    """
    boxes, scores, most, overlap, score = [*operands, None, None, None][:5]
    found = []
    if score is not None:
        found.append(side_of(scores, number(score), ALL, 1))
    limit = 0.0 if overlap is None else number(overlap)
    seen = 0
    for image in boxes[:4, :_MOST_BOXES]:
        seen |= around(_overlaps(image, bool(attributes.get("center_point_box"))), limit)
    words = f"an overlap below {limit:g}", "", f"an overlap above {limit:g}"
    found.append(Side(seen, BOTH, words))
    if most is not None and number(most) > 0:
        chosen = np.asarray(results[0])
        each = [0] if not len(chosen) else np.unique(chosen[:, :2], axis=0, return_counts=True)[1]
        pairs = scores.shape[0] * scores.shape[1]
        seen = AT * bool(np.max(each) == number(most))
        seen |= BELOW * bool(np.min(each) < number(most) or len(each) < pairs)
        words = "fewer boxes than the most", "the most boxes", ""
        found.append(Side(seen, BELOW | AT, words))
    return found


def _overlaps(boxes: Array, centered: bool) -> Array:
    """Returns the intersection over union of all pairs of boxes."""
    a, b = boxes[:, :2], boxes[:, 2:]
    if centered:
        a, b = a - b / 2, a + b / 2
    low, high = np.minimum(a, b), np.maximum(a, b)
    inner = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    inside = np.prod(np.maximum(inner, 0), axis=-1)
    area = np.prod(high - low, axis=-1)
    union = area[:, None] + area - inside
    share = np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)
    return np.asarray(share[np.triu_indices(len(boxes), 1)])


_WHOLE = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
# a comparison with a constant -> its form that looks at each element of the constant
EACH = {op: f"{op}, each" for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")}
_MOST_EACH = 4096
_ZERO = _at(lambda a: 0.0)
# the largest arguments whose results a float32 holds: a smaller bound counts as crossed beside it
_LARGEST_EXP = math.log(float(np.finfo(np.float32).max))
_LARGEST_SINH = _LARGEST_EXP + math.log(2)
# operator -> the sides of its bounds, by attributes, operands and results
SIDES: dict[str, Sides] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "Abs"), _ZERO),
    "Sign": _sign,
    **{name: integers.wrapped(op) for name, op in _WHOLE.items()},
    "RegexFullMatch": _matches,
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), integers.bits),
    "BitShift": integers.shifted,
    "ThresholdedRelu": _at(lambda a: a.get("alpha", 1.0), needed=ALL),
    "Shrink": _at(
        lambda a: -a.get("lambd", 0.5), lambda a: a.get("lambd", 0.5), needed=ALL
    ),
    "HardSigmoid": _at(
        lambda a: -a.get("beta", 0.5) / (a.get("alpha", 0.2) or 1.0),
        lambda a: (1 - a.get("beta", 0.5)) / (a.get("alpha", 0.2) or 1.0),
    ),
    "HardSwish": _at(lambda a: -3.0, lambda a: 3.0),
    "Binarizer": _at(lambda a: a.get("threshold", 0.0), needed=ALL),
    "Exp": _at(lambda a: _LARGEST_EXP),
    **dict.fromkeys(
        ("Sinh", "Cosh"), _at(lambda a: -_LARGEST_SINH, lambda a: _LARGEST_SINH)
    ),
    "GridSample": _at(lambda a: -1.0, lambda a: 1.0, operand=1),
    "Clip": _clip,
    "Max": _extreme(True),
    "Min": _extreme(False),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compare(ALL)),
    **dict.fromkeys(EACH.values(), _compare(ALL, each=True)),
    "Equal": _compare(BOTH),
    "Where": _truth,
    **dict.fromkeys(("Mod", "Div"), integers.modulus),
    "Cast": integers.cast,
    integers.CAST_BACK: integers.cast_back,
    "Floor": integers.steps,
    "Ceil": integers.steps,
    "Round": integers.halves,
    "QuantizeLinear": integers.quantized,
    **dict.fromkeys(
        ("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QGemm", "QLinearConcat",
         "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu"),
        integers.saturated,
    ),
    "IsInf": _infinite,
    "IsNaN": _nan,
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _ignored),
    "OneHot": _out_of_range,
    "NonMaxSuppression": _boxes,
}  # fmt: skip
# operator -> the operands whose values are compared, if not all
COMPARED = {
    "GridSample": (1,), "NonMaxSuppression": (0, 1), "NegativeLogLikelihoodLoss": (1,),
    "SoftmaxCrossEntropyLoss": (1,), "OneHot": (0,), "QuantizeLinear": (0,), "Mod": (0,),
    "Div": (0,), "Where": (0,),
}  # fmt: skip
