"""Every single-node case of ONNX's backend suite that is float in, float out and moves with its input.

The gradient graph in stock onnxruntime against central differences of the forward in float64 (1e-4), and the gradient
graph itself in float64 (1e-6); three seeds. Cases that onnxruntime cannot run go through the float64 leg alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onnxgrad.errors import InputError
from tests.backend_suite import case, clamp_ir
from tests.grad.numeric import check_model
from tests.suite_table import any_opset, table

# name of the case -> the convention it rests on: its inputs lie on a kink, where no difference says what is right
KINKS: dict[str, str] = {}
# not a function of its input that has a derivative, though an output moves with it
REFUSED: dict[str, str] = {}
# every n-th case in the default run
SAMPLE = 16

RUNS = table()["single_node_moving"]
REFERENCE_ONLY = table()["single_node_moving_reference_only"]


@pytest.fixture(scope="module", autouse=True)
def opsets() -> Iterator[None]:
    """Operators of opsets newer than onnxruntime guarantees are among the cases."""
    with any_opset():
        yield


def check(name: str, *, onnxruntime: bool) -> None:
    found = case(name)
    model = clamp_ir(found.model)
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]):
            check_model(model, found.inputs, onnxruntime=False)
        return
    check_model(model, found.inputs, onnxruntime=onnxruntime)


@pytest.mark.parametrize("name", [n for n in RUNS[::SAMPLE] if n not in KINKS])
def test_sample(name: str) -> None:
    check(name, onnxruntime=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in RUNS if n not in KINKS])
def test_case(name: str) -> None:
    check(name, onnxruntime=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in REFERENCE_ONLY if n not in KINKS])
def test_case_that_only_the_reference_runs(name: str) -> None:
    check(name, onnxruntime=False)


def test_the_exceptions_are_cases() -> None:
    assert {*KINKS, *REFUSED} <= {*RUNS, *REFERENCE_ONLY}
