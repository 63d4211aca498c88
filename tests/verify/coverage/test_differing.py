"""Constants that differ: which elements, and which of them no run read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxgrad.ir.storage import external_data
from onnxgrad.verify import verify
from onnxgrad.verify.coverage.counters import Reach
from onnxgrad.verify.coverage.differing import Differing
from onnxgrad.verify.proof_model import proof_model
from tests.verify.coverage.planted import ROWS, F, model

f32 = np.float32
FY = "float[N,6] y"
W = np.random.default_rng(1).standard_normal((6, 6)).astype(f32)
MASKED = "a = Mul (x, m) y = MatMul (a, w)"
MASK = np.array([0, 1, 1, 1, 1, 1], f32)


def changed(array: Any, at: Any, by: float = 0.5) -> Any:
    other = array.copy()
    other[at] += by
    return other


def test_elements_that_meet_only_zeros_are_not_proved() -> None:
    a, b = (model(F, MASKED, FY, w=w, m=MASK) for w in (W, changed(W, 0)))
    report = verify(a, b)
    assert report.verdict == "not proved"
    assert report.summary == "not proved: 6 elements of 'w' differ that no run met"
    assert report.to_dict()["coverage"]["unmet"] == {"w": 6}
    assert "'w': 6 elements that differ mattered in no run" in report.coverage.details
    assert verify(a, b, weights="rounded").ok  # the caller says how the weights were computed
    # a difference that runs would call rounding
    rounded = model(F, MASKED, FY, w=np.nextafter(W, f32(9)), m=MASK)
    assert verify(a, rounded).ok


def test_elements_that_some_input_reaches_are_looked_for() -> None:
    body = "a = Add (x, far) r = Relu (a) y = MatMul (r, w)"
    far = np.array([0, 0, 0, 0, 0, -700], f32)
    a, b = (model(F, body, FY, w=w, far=far) for w in (W, changed(W, 5)))
    assert verify(a, b).verdict == "different" and verify(a, a).ok


def test_an_element_that_two_nodes_read_is_read_by_one() -> None:
    body = "a = Mul (x, m) p = MatMul (a, w) q = MatMul (x, w) y = Add (p, q)"
    a, b = (model(F, body, FY, w=w, m=MASK) for w in (W, changed(W, 0, 1e-7)))
    assert verify(a, b).ok


@pytest.mark.parametrize("name", ["t", "table"])
def test_constants_are_paired_by_name_or_alone_by_shape(name: str) -> None:
    body = f"y = Gather ({name}, x)"
    given, result = "int64[N] x", "float[N,6] y"
    a = proof_model(model(given, "y = Gather (t, x)", result, t=ROWS))
    b = proof_model(model(given, body, result, **{name: changed(ROWS, 3)}))
    mask = Differing(a, b).mask("t")
    assert mask is not None and np.flatnonzero(mask.any(axis=1)).tolist() == [3]


def test_constants_computed_from_those_that_differ() -> None:
    body = "v = Transpose <perm = [1, 0]> (t) u = Reshape (v, s) y = Add (x, u)"
    a, b = (
        proof_model(model("float[6,2] x", body, "float[6,2] y", t=t, s=[6, 2]))
        for t in (ROWS[:2], changed(ROWS[:2], (1, 4)))
    )
    mask = Differing(a, b).mask("u")
    assert mask is not None and np.argwhere(mask).tolist() == [[4, 1]]
    assert Differing(a, a).mask("u") is None and Differing(a, b).mask("x") is None


def test_explained_constants_are_left_out() -> None:
    a, b = (proof_model(model(F, MASKED, FY, w=w, m=MASK)) for w in (W, changed(W, 0)))
    found = Differing(a, b)
    assert found.unread([]) == {}  # nothing reads it
    site = [Reach("", "w", np.zeros(6, bool), -2)]
    assert found.unread(site)["w"].count == 6
    found.explained.add("w")
    assert found.unread(site) == {}


@pytest.mark.parametrize(
    ("name_of", "types"),
    [("float", f32), ("float16", np.float16), ("int8", np.int8), ("int4", ml_dtypes.int4)],
)
def test_constants_in_files_are_compared_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_of: str, types: Any
) -> None:
    monkeypatch.setattr(external_data, "_PIECE", 64)
    table = np.arange(300).reshape(60, 5).astype(types)
    other = table.copy()
    other[[7, 59], [1, 4]] = np.ones((), types)
    proofs = []
    for name, values in (("a", table), ("b", other)):
        made = model("int64[N] x", "y = Gather (t, x)", f"{name_of}[N,5] y", t=values)
        path = tmp_path / f"{name}.onnx"
        onnx.save(made, path, save_as_external_data=True, size_threshold=0, location=f"{name}.data")
        proofs.append(proof_model(path))
    (a, b), inside = proofs, np.asarray(table != other)
    mask = Differing(a, b).mask("t")
    assert mask is not None and inside.any() and (mask == inside).all()
    assert Differing(a, a).mask("t") is None and not Differing(a, a).any
