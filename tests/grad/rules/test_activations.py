"""onnxgrad/grad/rules/activations.py"""

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, normal, op_model

CASES = [
    "Sigmoid", "Relu", "LeakyRelu <alpha = 0.3>", "ThresholdedRelu <alpha = 0.7>", "Shrink <lambd = 0.7>",
    "Elu <alpha = 1.5>", "Celu <alpha = 2.0>", "Selu", "Softplus", "Softsign", "HardSigmoid <alpha = 0.3>", "HardSwish",
    "Gelu", 'Gelu <approximate = "tanh">', "Mish",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_activation(case: str) -> None:
    name, _, attributes = case.partition(" ")
    check_op(f"y = {name} {attributes} (x)", {"x": distinct(4, 5) * 3})


@pytest.mark.parametrize("attributes", ["", "<alpha = 1.5>"])
def test_swish(attributes: str) -> None:
    check_op(f"y = Swish {attributes} (x)", {"x": normal(2, 3)}, opset=24)


def test_prelu() -> None:
    check_op("y = PRelu (x, s)", {"x": normal(4, 5), "s": normal(5)})
    check_op("y = PRelu (x, s)", {"x": normal(2, 3, 4), "s": normal(3, 1)})


@pytest.mark.parametrize(
    ("name", "expected"), [("Relu", 0), ("LeakyRelu", 0.01), ("Elu", 1), ("Selu", 1.7580993)]
)
def test_conventions_at_zero(name: str, expected: float) -> None:
    feeds = {"x": np.zeros(1, np.float32)}
    found = run(
        gradient(op_model(f"y = {name} (x)", feeds), adjoint="input"),
        {**feeds, "y_grad": np.ones(1, np.float32)},
    )
    np.testing.assert_allclose(found["x_grad"], [expected], rtol=1e-6)
