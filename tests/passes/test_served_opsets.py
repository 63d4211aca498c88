"""A conversion stops at the newest opset whose operators the installed onnxruntime has kernels for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.ir.load import load
from onnxgrad.passes import served_opsets
from onnxgrad.passes.convert_opset import ConvertOpset
from onnxgrad.passes.served_opsets import newest_served
from onnxgrad.verify.running.child_process import RunFailed
from tests.rewriting import apply, model_of

MODELS = Path(__file__).parent.parent.parent / "models"
ROIS = (
    "g (float[2,3,8,8] x, float[2,4] r, int64[2] b) => (float[2,3,1,1] y) { y = RoiAlign(x, r, b) }"
)
QUANTIZED = (
    "g (float[N] x) => (float[N] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
)
SCALE = {"s": np.float32(0.5), "z": np.uint8(3)}


# as an onnxruntime with these kernels would say; onnx has new forms of RoiAlign at 16 and 22
def known(monkeypatch: pytest.MonkeyPatch, **kernels: list[Any]) -> None:
    monkeypatch.setattr(served_opsets, "kernels", lambda provider: kernels)


FLOAT = {"T1": ["tensor(float)"]}
_END = (1 << 31) - 1


@pytest.mark.parametrize(
    ("kernels", "to", "served"),
    [
        ([(10, 15, FLOAT), (16, _END, FLOAT)], 25, 21),
        ([(10, 15, FLOAT), (16, _END, FLOAT)], 20, 20),
        ([(10, 15, FLOAT), (16, 22, FLOAT)], 25, 25),
        ([(10, 15, FLOAT), (16, 21, FLOAT), (22, _END, {"T1": ["tensor(double)"]})], 25, 21),
        ([(10, 15, FLOAT)], 25, 16),  # it has none at the model's opset either
        ([], 25, 25),
    ],
)
def test_the_newest_that_serves(
    kernels: list[Any], to: int, served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, RoiAlign=kernels)
    program = load(model_of(ROIS, opset=16))
    found, reason = newest_served(program, to)
    if kernels == [(10, 15, FLOAT)]:
        served = to
    assert found == served
    assert reason == (
        "" if found == to else "the installed onnxruntime has no kernel for RoiAlign of opset 25"
    )


def test_an_opset_must_serve_all_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad ends at 18, where ReduceMax, which has kernels before and behind, has none."""
    known(monkeypatch, Pad=[(13, 18, {})], ReduceMax=[(13, 13, {}), (20, 30, {})])
    text = "g (float[2,3] x) => (float[A,B] y) { m = ReduceMax(x) y = Pad(m, p) }"
    program = load(model_of(text, {"p": np.array([1, 0, 0, 1])}, opset=16))
    assert newest_served(program, 25)[0] == 17


def test_operators_that_go_do_not_hold_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upsample is deprecated from opset 10 on: it becomes a Resize."""
    known(monkeypatch, Upsample=[(7, 8, {}), (9, 9, {})], Resize=[(10, 30, {})])
    text = "g (float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Upsample(x, s) }"
    program = load(model_of(text, {"s": np.array([1, 1, 2, 2], np.float32)}, opset=9))
    assert newest_served(program, 18) == (18, "")


def test_without_onnxruntime_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(provider: str) -> Any:
        raise RunFailed("load", "no such function")

    monkeypatch.setattr(served_opsets, "kernels", missing)
    assert newest_served(load(model_of(ROIS, opset=16)), 25) == (25, "")


def test_the_pass_says_where_it_stopped_and_may_be_told_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known(monkeypatch, QuantizeLinear=[(13, 27, {})], DequantizeLinear=[(13, 25, {})])
    done = apply(model_of(QUANTIZED, SCALE, opset=13), ConvertOpset(to=28))
    assert done.program.opset == 27
    # onnx has forms at 13, 19, 21, 23, 24, 25 and 28
    assert list(done.trace.notes) == [
        "opset 27 in place of 28: the installed onnxruntime has no kernel for QuantizeLinear of opset 28"
    ]
    on = apply(model_of(QUANTIZED, SCALE, opset=13), ConvertOpset(to=28, kernels=False))
    assert on.program.opset == 28 and not on.trace.notes


def test_a_model_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, RoiAlign=[(16, _END, FLOAT)])
    done = apply(model_of(ROIS, opset=21), ConvertOpset(to=25))
    assert not done.trace.rewrites and done.program.opset == 21 and len(done.trace.notes) == 1


def test_composites_are_made_where_they_have_kernels() -> None:
    """onnxruntime 1.32 has a kernel of Attention up to opset 24 and runs the body of 25."""
    done = onnxgrad.optimize(MODELS / "vit.onnx", target_opset=25, verify=False, report=True)
    after = done.outcome.after
    assert after is not None and after.operators["Attention"]
    assert done.model.opset_import[0].version < 25
    assert "no kernel for Attention of opset 25" in str(done)
    assert done.to_dict()["notes"] == done.outcome.notes != []
