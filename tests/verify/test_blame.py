from __future__ import annotations

from pathlib import Path

import pytest

from onnxgrad.errors import InternalError
from onnxgrad.verify.blame import bisect, blamed
from tests.helpers import parse


@pytest.mark.parametrize("total", [1, 2, 3, 10, 1000])
def test_finds_the_first_bad_firing(total: int) -> None:
    for first in {1, 2, total // 2, total - 1, total} - {0}:
        if first > total:
            continue
        calls: list[int] = []

        def good(n: int, first: int = first, calls: list[int] = calls) -> bool:
            calls.append(n)
            return n < first

        assert bisect(total, good) == first
        assert len(calls) <= total.bit_length() + 2


def test_a_later_repair_does_not_hide_it() -> None:
    bad = {3, 4, 9}
    found = bisect(9, lambda n: n not in bad)
    assert found in bad and found - 1 not in bad


@pytest.mark.parametrize(
    ("total", "good"), [(5, lambda n: True), (5, lambda n: False), (0, lambda n: True)]
)
def test_ends_are_checked(total: int, good) -> None:
    with pytest.raises(InternalError):
        bisect(total, good)


def test_a_declared_shape_that_the_run_contradicts_is_to_blame(tmp_path: Path) -> None:
    text = "g (float[3,4,5] x, int64[0] axes) => (float[1,1,4,4] y) { y = ReduceLogSum(x, axes) }"
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(text, opset=18, ir_version=8).SerializeToString())
    found = blamed([str(path)], InternalError("a rule failed"))
    assert "output 'y' is declared of shape [1, 1, 4, 4] and has [1, 1, 1] when it runs" in str(
        found
    )
