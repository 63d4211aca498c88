"""Steps of a graph: scopes, the budget of time between them, and what jitter moves."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify.reference.evaluate import Reference, Unsupported, reference
from tests.helpers import parse


def test_captured_values_overloads_and_optional_inputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {3, 4}> {
          p = f.scale <k = 2.0> (x)
          y = If (c) <then_branch = t () => (float[2] z) { z = Mul(p, w) },
                      else_branch = e () => (float[2] z) { n = Neg(p) z = Add(n, w) }>
        }
        <domain: "f", opset_import: ["": 20]> scale <k: float = 5.0> (a, b) => (r) {
          v = Constant <value_float: float = @k> () r = Mul(a, v) }"""
    model = parse(text)
    x = np.array([1.0, 10.0], np.float32)
    assert reference(model, {"x": x, "c": np.array(True)})["y"].tolist() == [6, 80]
    assert reference(model, {"x": x, "c": np.array(False)})["y"].tolist() == [1, -16]
    del model.graph.node[0].attribute[:]
    assert reference(model, {"x": x, "c": np.array(True)})["y"].tolist() == [15, 200]


def test_time_budget() -> None:
    text = """g (int64 n, float[99,99] x) => (float[99,99] y) {
      y = Loop(n, , x) <body = b (int64 i, bool c, float[99,99] v) => (bool d, float[99,99] w) {
        d = Identity(c) w = MatMul(v, v) }> }"""
    with pytest.raises(Unsupported, match="budget"):
        Reference(parse(text)).run(
            {"n": np.array(10**9), "x": np.zeros((99, 99), np.float32)}, seconds=0.2
        )


def test_jitter_moves_sums_in_their_last_bits_only() -> None:
    model = parse(
        "g (float[9,9] x) => (float[9,9] y, float[9,9] z) { y = MatMul(x, x) z = Neg(x) }"
    )
    x = {"x": np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32)}
    plain, shaken = reference(model, x), Reference(model).run(x, jitter=1e-12)
    moved = np.abs(plain["y"] - shaken["y"]).max()
    assert 0 < moved < 1e-10
    assert np.array_equal(plain["z"], shaken["z"])
