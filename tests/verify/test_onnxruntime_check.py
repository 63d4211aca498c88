"""The onnxruntime check of int8 models: what onnxruntime fuses at default optimisations."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import ModelProto

from onnxgrad import verify
from onnxgrad.verify.proof_model import source_of
from onnxgrad.verify.request import Settings
from onnxgrad.verify.running.session import Session, open_session
from tests.helpers import parse

_HEAD = """g (float[4,8] x) => (float[4,8] y)
    <float s = {0.0625}, int8 z = {0}, float t = {0.00390625}, int8 u = {-128}, float c = {1.034}>
    { q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z) """
_TAIL = " w = QuantizeLinear (p, t, u)  y = DequantizeLinear (w, t, u) }"
FUSED = parse(_HEAD + "p = Softmax (d)" + _TAIL)
APART = parse(_HEAD + "n = LogSoftmax (d)  p = Exp (n)" + _TAIL)
OTHER = parse(_HEAD + "m = Softmax (d)  p = Mul (m, c)" + _TAIL)


def test_lost_integer_kernels_are_a_note() -> None:
    """onnxruntime has QLinearSoftmax, and no kernel of the second model's nodes."""
    report = verify(FUSED, APART)
    assert report.ok
    (note,) = (n for n in report.notes if "integer kernel" in n)
    assert "has 1 integer kernel in the original and 0 in the second model" in note
    assert "keeps 2 more" in note
    assert not any("integer kernel" in n for n in verify(APART, FUSED).notes)
    assert not any("integer kernel" in n for n in verify(FUSED, FUSED).notes)


def test_int8_models_are_compared_as_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original's integer kernels compute something else than the original without
    optimisations, which the second model equals to the bit.
    """
    real = Settings.open

    def opened(self: Settings, model: Any, *, optimize: bool, again: bool = False) -> Session:
        if optimize and source_of(model)[0] == source_of(FUSED)[0]:
            return open_session(OTHER, provider=self.provider, threads=self.threads)
        return real(self, model, optimize=optimize, again=again)

    assert verify(FUSED, APART).checks["onnxruntime"].worst.rel == 0
    monkeypatch.setattr(Settings, "open", opened)
    report = verify(FUSED, APART)
    worst = report.checks["onnxruntime"].worst
    assert worst is not None and 1e-2 < worst.rel < 5e-2
    assert any("the original differs from itself" in n for n in (*report.notes, *report.unproved))


def test_only_int8_models_are_compared_as_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ModelProto] = []
    real = Session.optimized
    monkeypatch.setattr(Session, "optimized", lambda s: opened.append(real(s)) or opened[-1])
    plain = parse("g (float[3] x) => (float[3] y) { y = Exp (x) }")
    verify(plain, plain)
    assert not opened
    verify(FUSED, FUSED)
    assert [len(m.graph.node) for m in opened] == [3, 3]
