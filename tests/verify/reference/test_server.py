"""The compiled models of the float64 child: those whose runs are counted stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import NodeFailed
from onnxgrad.ir.storage import lazy_arrays
from onnxgrad.ir.storage.stored_arrays import StoredArray
from onnxgrad.verify.reference import client, server
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.reference.kernels import ROUNDED
from onnxgrad.verify.reference.server import References
from tests.helpers import parse

MODEL = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }").SerializeToString()


def _run(references: References, key: str, counted: object, feeds: Any = None, **more: Any) -> Any:
    options = {
        "seconds": None,
        "jitter": 0.0,
        "seed": 0,
        "everywhere": False,
        "deployed": False,
        "count": counted,
    }
    options |= {"steps": True, "rounded": None, "moved": None, **more}
    return references.run(key, feeds or {"x": np.ones(2, np.float32)}, None, options)


def test_other_models_do_not_replace_those_whose_runs_are_counted() -> None:
    references = References()
    for key in ("original", "candidate"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, "proof") is not None
    for key in ("lookup", "table", "other"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, None) is not None
    assert references.covered("original", "proof", "") and references.covered(
        "candidate", "proof", ""
    )
    assert _run(references, "lookup", None) is None


def test_inputs_that_do_not_move_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child remembers them by mark; a child that does not is sent all of them."""
    sent: list[int] = []
    ask = client._ask

    def counting(child: Any, timeout: float, verb: str, *arguments: Any) -> Any:
        if verb == "exact.run":
            sent.append(len(arguments[1]))
        return ask(child, timeout, verb, *arguments)

    monkeypatch.setattr(client, "_ask", counting)
    model = Float64(
        parse(
            "g (float[2] x, float[2] a, float[2] b) => (float[2] y) { s = Mul (a, x) y = Add (s, b) }"
        )
    )
    feeds = {"x": np.float32([2, 3]), "a": np.zeros(2), "b": np.zeros(2)}
    model.run(feeds, outputs=["y"], moved=("one", ""))
    assert model.run({**feeds, "a": np.ones(2)}, moved=("one", "a"))["y"].tolist() == [2, 3]
    assert model.run({**feeds, "b": np.ones(2)}, moved=("one", "b"))["y"].tolist() == [1, 1]
    assert sent[-2:] == [1, 1]
    other = {**feeds, "x": np.float32([5, 7])}
    assert model.run({**other, "a": np.ones(2)}, moved=("two", "a"))["y"].tolist() == [5, 7]
    assert sent[-2:] == [1, 3]


def _with_large_weights() -> onnx.ModelProto:
    model = parse(
        "g (float[4,512] x, int64[3] i, float d) => (float[4,512] y, float[3,256] r, float[4,512] z) {"
        " a = MatMul (x, w) b = Gemm <transB = 1> (a, v, c) t = Transpose <perm = [1, 0]> (w)"
        " y = MatMul (a, t) r = Gather (table, i) s = Add (u, d) same = Identity (s)"
        " q = MatMul (b, same) z = Mul (q, wide) }"
    )
    rng = np.random.default_rng(0)
    shapes = {"w": (512, 256), "v": (512, 256), "c": (512,), "table": (400, 256), "u": (512, 512)}
    for name, shape in {**shapes, "wide": (4, 512)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"jitter": 1e-7, "everywhere": True}, {"count": "c"}], ids=str
)
def test_weights_stay_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], inside: bool
) -> None:
    """Results are those of a model with its weights, however little of them is in memory."""
    monkeypatch.setattr(server, "LARGE_FILE", 1)
    model, path = _with_large_weights(), tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=not inside, location="w.data", size_threshold=0)
    lazy, whole = References(), References()
    whole.open(lambda *_: [], "m", _with_large_weights().SerializeToString(), [])
    lazy.open(lambda *_: [], "m", str(path), [])
    stays = {n for n, v in lazy._open["m"].compiled.initial.items() if isinstance(v, StoredArray)}
    assert stays == {"w", "v", "table", "u"}
    rng = np.random.default_rng(1)
    for d in (np.zeros(()), np.ones(()), rng.standard_normal((512, 512))):
        feeds = {"x": rng.standard_normal((4, 512)).astype(np.float32), "i": np.array([7, -1, 0])}
        a, b = (_run(r, "m", None, {**feeds, "d": d}, **options) for r in (lazy, whole))
        assert a.keys() == b.keys() == {"y", "r", "z"}
        for name, value in a.items():
            np.testing.assert_allclose(value, b[name], rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", ["", ", c"])
def test_convolutions_by_a_weight_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, bias: str
) -> None:
    monkeypatch.setattr(server, "LARGE_FILE", 1)
    monkeypatch.setattr(lazy_arrays, "_BLOCK", 10_000)
    model = parse(
        "g (float[2,32,6,5] x) => (float[2,M,Y,X] y) {"
        f" y = Conv <group = {group}, pads = [1, 0, 2, 1], strides = [2, 1]> (x, w{bias}) }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (256, 32 // group, 3, 3), "c": (256,)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "m.onnx")
    lazy, whole = References(), References()
    whole.open(lambda *_: [], "m", model.SerializeToString(), [])
    lazy.open(lambda *_: [], "m", str(tmp_path / "m.onnx"), [])
    if group == 1:
        monkeypatch.setattr(StoredArray, "wide", None)  # never read as a whole
    feeds = {"x": rng.standard_normal((2, 32, 6, 5)).astype(np.float32)}
    for options in ({}, {"jitter": 1e-7, "everywhere": True}):
        a, b = (_run(r, "m", None, feeds, **options)["y"] for r in (lazy, whole))
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-9)


def test_rows_outside_a_table_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGE_FILE", 1)
    onnx.save(_with_large_weights(), tmp_path / "m.onnx")
    references = References()
    references.open(lambda *_: [], "m", str(tmp_path / "m.onnx"), [])
    feeds = {"x": np.ones((4, 512)), "i": np.array([400, 0, 0]), "d": np.zeros(())}
    with pytest.raises(NodeFailed, match="out of range"):
        _run(references, "m", None, feeds)


def test_only_wanted_outputs_are_held() -> None:
    """The others are freed when they were used, and draw the same numbers."""
    model = parse("g (float[2] x) => (float[2] a, float[2] b) { a = Exp (x) b = Exp (a) }")
    whole, part = Reference(model), Reference(model)
    feeds = {"x": np.ones(2)}
    options: dict[str, Any] = {"jitter": 1e-7, "jittered": ROUNDED, "seed": 3}
    both, one = whole.run(feeds, **options), part.run(feeds, outputs=["b"], **options)
    assert one.keys() == {"b"} and np.array_equal(np.asarray(both["b"]), np.asarray(one["b"]))
    assert all("a" in step.dead for step in part._latest.steps[1:])
    assert part.run(feeds).keys() == {"a", "b"}
