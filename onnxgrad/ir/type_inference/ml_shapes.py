"""Shapes of classical machine learning (ai.onnx.ml), of whose operators onnx infers the dtype and
little more.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto

from onnxgrad.ir.attributes import written
from onnxgrad.ir.types import Dim, Shape
from onnxgrad.ir.var import Var


def refine_ml(node: NodeProto, x: Var) -> Shape | None:
    """The shape of the first result, as far as the first operand tells; None where it does not."""
    if node.op_type in _ELEMENTWISE:
        return x.shape
    width = _WIDTHS.get(node.op_type)
    return None if width is None or x.rank != 2 else _rows(x.shape, width(node))


def _rows(x: Shape | None, width: Dim) -> Shape | None:
    return None if x is None else (x[0], width)


_ELEMENTWISE = frozenset({"Binarizer", "Imputer", "LabelEncoder", "Normalizer", "Scaler"})
_WIDTHS: dict[str, Callable[[NodeProto], int]] = {
    "LinearRegressor": lambda node: int(written(node, "targets", 1)),
    "SVMRegressor": lambda node: 1,
    "TreeEnsembleRegressor": lambda node: int(written(node, "n_targets", 1)),
}
# the operators whose results `refine_ml` may know better than onnx
ML_REFINED = _ELEMENTWISE | frozenset(_WIDTHS)
