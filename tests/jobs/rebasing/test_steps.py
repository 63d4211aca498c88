"""Steps survive a file, and equal ones are one."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import Step
from onnxgrad.jobs.rebasing.steps import Decoder, Encoder

W = Step("weight", "w")


def of_file(*steps: Step) -> tuple[list[Step], list[int]]:
    encoder = Encoder()
    numbers = [encoder.number(s) for s in steps]
    return Decoder(*json.loads(json.dumps([encoder.entries, encoder.constants]))).steps, numbers


def test_equal_steps_are_one() -> None:
    twice = [Step("numpy", "add", [Step("weight", "w"), np.float32(1)]) for _ in range(2)]
    steps, numbers = of_file(*twice, Step("numpy", "add", [Step("weight", "w"), np.float64(1)]))
    assert numbers == [1, 1, 2] and len(steps) == 3


@pytest.mark.parametrize(
    "value",
    [
        1, 2.5, float("inf"), True, None, "text", (1, 2), [1, [2]], {"axis": (0,)}, slice(None, 3, -1), ...,
        np.float32(1.5), np.arange(6, dtype=np.int64).reshape(2, 3), np.array(2.0), np.zeros((0, 3)),
        np.dtype(np.float16), np.float64, np.array([1, 2], ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16),
        np.longdouble(3), np.array([True, False]), np.array([[0, 1], [2**70, -1]], object), np.array(["N", 3], object),
        np.zeros((0, 2), object),
    ],
)  # fmt: skip
def test_operands(value: Any) -> None:
    (_, step), _ = of_file(Step("numpy", "f", [W, value]))
    found = step.operands[1]
    if isinstance(value, (np.ndarray, np.generic)):
        assert type(found) is type(value) and found.dtype == value.dtype
        assert np.array_equal(found, value)
    else:
        assert found == (np.dtype(value) if value is np.float64 else value)
    assert type(found) is type(value) or value is np.float64


def test_an_operand_that_a_file_cannot_hold() -> None:
    with pytest.raises(NotProved, match="not rebasable: a step has an operand of type object"):
        of_file(Step("numpy", "f", [object()]))
