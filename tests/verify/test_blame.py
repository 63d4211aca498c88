from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxgrad import gradient, inspect, reduce, vmap
from onnxgrad.errors import InputError, InternalError
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


NO_RANK = """g (float[N,3] x, float[4,2,3] w) => (float y) {
  h = MatMul (x, w)  s = Softmax (h)  y = ReduceSum <keepdims = 0> (s) }"""


@pytest.mark.parametrize("job", [gradient, lambda m: vmap(m, verify=False), inspect])
@pytest.mark.parametrize("as_file", [False, True])
def test_python_names_the_fault_of_an_invalid_model(
    job: Callable[[Any], Any], as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of onnx or onnxruntime, not in those of the line that met it."""
    model: Any = parse(NO_RANK)
    if as_file:
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        model = tmp_path / "m.onnx"

    jobs = "gradients.derive", "open_batch.vmap", "inspection.contents.inspect"
    for name in jobs:  # fails at once, with a TypeError
        monkeypatch.setattr(f"onnxgrad.jobs.{name}", math.sqrt)
    with pytest.raises(InputError) as found:
        job(model)
    assert "Incompatible dimensions" in str(found.value) and "rule" not in str(found.value)
    assert str(found.value).startswith(str(model) if as_file else "the model: ")


def test_an_error_of_the_callers_own_function_passes() -> None:
    def check(_: Any) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reduce(parse(NO_RANK), check=check)
