"""What torch and onnxscript give goes in as it is; the stand-ins of test_kinds.py are true to it."""

# no postponed annotations here: onnxscript reads them as they stand
import io
from typing import Any

import onnx
import pytest

import onnxgrad
from tests.test_kinds import OTHERS, TRANSFORMS

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from onnxscript import FLOAT, script  # noqa: E402
from onnxscript import opset18 as ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


@script()
def relu_of_product(x: FLOAT[3, 2], w: FLOAT[2, 2]) -> FLOAT[3, 2]:
    return ops.Relu(ops.MatMul(ops.Identity(x), w))


@script()
def leaky(x: FLOAT[3, 2], w: FLOAT[2, 2], slope: float) -> FLOAT[3, 2]:
    return ops.LeakyRelu(ops.MatMul(x, w), alpha=slope)


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any, w: Any) -> Any:
        return torch.relu(x @ w)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    exported = torch.onnx.export(
        Model(), (torch.randn(3, 2), torch.randn(2, 2)), dynamo=True, verbose=False
    )
    stream = io.BytesIO()
    exported.save(stream)
    return {"onnxscript": relu_of_product, "ONNXProgram": exported, "BytesIO": stream}


@pytest.mark.parametrize("kind", ["onnxscript", "ONNXProgram", "BytesIO"])
def test_kind(models: dict[str, Any], kind: str) -> None:
    given = models[kind]
    wrt = [v.name for v in onnxgrad.load(given).main.inputs]
    for name, function in TRANSFORMS.items():
        if name == "gradient":
            found = onnxgrad.gradient(given, wrt, adjoint="input")
        else:
            found = function(given)
        assert type(found) is onnx.ModelProto, name
    assert onnxgrad.verify(given, given).ok and onnxgrad.check_gradient(given, wrt, seed=1).ok


def test_a_function_that_needs_an_attribute() -> None:
    with pytest.raises(
        onnxgrad.InputError, match="the onnxscript function 'leaky' returns no model: ValueError"
    ):
        onnxgrad.load(leaky)


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Any) -> Any:
        return torch.relu(x @ self.w)


@pytest.mark.parametrize(
    "function", [name for name in OTHERS if name not in ("extract", "fix_dims")]
)
def test_everything_takes_a_program(function: str) -> None:
    exported = torch.onnx.export(
        Layer(),
        (torch.randn(3, 2),),
        dynamo=True,
        verbose=False,
        input_names=["x"],
        output_names=["y"],
    )
    assert OTHERS[function](exported) is not None
