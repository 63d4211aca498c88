"""Cases of ONNX's backend suite in float16, bfloat16 and float64: where the forward runs, the gradient does."""

from __future__ import annotations

import pytest

from tests.backend_suite import case
from tests.grad.dtype_cases import DTYPES, sweep
from tests.grad.test_suite import RUNS, cases
from tests.suite_table import any_opset


def check(every: int, first: int) -> None:
    names = cases(RUNS)[first::every]
    with any_opset():
        counts, failures = sweep(map(case, names), DTYPES)
    assert not failures, "\n".join(failures)
    assert counts["float16: right"] > len(names) / 2
    assert counts["double: right"] > len(names) / 4


@pytest.mark.filterwarnings("ignore")
def test_some() -> None:
    check(60, 5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_sixth() -> None:
    """All of them: `python scripts/sweep_dtypes.py`."""
    check(6, 0)
