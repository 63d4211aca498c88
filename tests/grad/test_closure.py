"""Second derivatives need a rule for every operator that a rule emits."""

import re
from pathlib import Path

import onnx
import pytest

import onnxgrad.grad
from onnxgrad.grad import find, gradient
from tests.grad.numeric import check_model, check_op, distinct, normal, op_model, positive

FOLDER = Path(onnxgrad.grad.__file__).parent


def emitted() -> set[str]:
    """Every `op.X(` in the sources, and what Python operators on values emit."""
    text = "\n".join(p.read_text() for p in FOLDER.rglob("*.py"))
    operators = {"Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Neg", "Transpose"}
    return set(re.findall(r"\bop\.([A-Z]\w+)\(", text)) | operators


def test_every_operator_that_a_rule_emits_has_a_rule() -> None:
    without = {name for name in emitted() if find(name) is None and not onnx.defs.get_schema(name).has_function}
    assert without == set()


SECOND = {
    "y = Tanh (x)": {"x": normal(2, 3)},
    "y = Gelu (x)": {"x": normal(2, 3)},
    "y = Pow (x, e)": {"x": positive(2, 3), "e": positive(3, seed=1)},
    "y = MatMul (x, w)": {"x": normal(2, 3, 4), "w": normal(4, 5)},
    "y = Softmax (x)": {"x": normal(2, 3)},
    "y = LayerNormalization (x, s, b)": {"x": normal(2, 3, 4), "s": normal(4), "b": normal(4, seed=1)},
    "y = Conv <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 0, 1]> (x, w)": {
        "x": normal(1, 2, 5, 6),
        "w": normal(3, 2, 3, 2),
    },
    "y = MaxPool <kernel_shape = [2, 2]> (x)": {"x": distinct(1, 2, 4, 4)},
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 0, 0, 0]> (x)": {"x": distinct(1, 2, 4, 4)},
    "y = ReduceLogSumExp (x)": {"x": normal(2, 3)},
    "y = ReduceProd (x)": {"x": positive(2, 3)},
    "y = InstanceNormalization (x, s, b)": {"x": normal(2, 3, 4), "s": positive(3), "b": normal(3)},
}


@pytest.mark.parametrize("node", SECOND)
def test_second_derivatives_agree_with_differences_of_the_first(node: str) -> None:
    feeds = SECOND[node]
    first = gradient(op_model(node, feeds, symbolic=True), seed="input")
    given = {**feeds, "y_grad": normal(*output_shape(node, feeds), seed=2)}
    check_model(first, given, [*feeds, "y_grad"], target=[f"{n}_grad" for n in feeds], seeds=(0,))


def output_shape(node: str, feeds: dict[str, object]) -> tuple[int, ...]:
    model = op_model(node, feeds)
    return tuple(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim)


def test_numeric_checks_can_fail() -> None:
    with pytest.raises(AssertionError, match="differences give"):
        check_op("y = Abs (x)", {"x": normal(2, 3) * 1e-9}, symbolic=False)  # a kink within the step
