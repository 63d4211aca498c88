"""A model against what its framework had computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad import edit
from onnxgrad.errors import InputError
from onnxgrad.verify import verify
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT, parse

TEXT = """g (float[N,3] x) => (float[N,4] y, float[N] z)
  <float[3,4] w = {1,-2,3,0.1, 0.2,0.3,-0.4,1, 2,1,-1,0.5}, int64[1] last = {-1}> {
  h = MatMul (x, w)  y = Tanh (h)  z = ReduceSum <keepdims = 0> (y, last) }"""
X = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}


def stored() -> dict[str, Any]:
    return run(parse(TEXT), X)


def test_what_was_stored_comes_out(tmp_path: Path) -> None:
    report = verify(parse(TEXT), expect=stored(), inputs=X)
    assert report.verdict == "equal" and set(report.checks) == {"float64", "onnxruntime"}
    assert dict(report.compared) == {"y": 20, "z": 5} and report.cases[0].dims == {"N": 5}
    np.savez(tmp_path / "in.npz", **X)
    np.savez(tmp_path / "out.npz", **stored())
    assert verify(parse(TEXT), expect=tmp_path / "out.npz", inputs=str(tmp_path / "in.npz")).ok


def test_a_model_that_computes_something_else_differs() -> None:
    found = stored()
    found["y"][2, 1] += 1e-3
    report = verify(parse(TEXT), expect=found, inputs=X)
    assert report.verdict == "different" and report.worst.index == (2, 1)
    assert not report.checks["float64"].worst.ok and not report.checks["onnxruntime"].worst.ok
    near = verify(parse(TEXT), expect=found, inputs=X, atol=2e-3)
    assert near.verdict == "within bounds"
    wide = {name: value.astype(np.float64) for name, value in stored().items()}
    assert "dtype was float64" in str(verify(parse(TEXT), expect=wide, inputs=X))
    assert verify(parse(TEXT), expect=wide, inputs=X, rtol=1e-5, atol=1e-6).ok


WIDTHS = {
    "float16": ("float[3] x", "a = Cast <to = 1> (x)"),
    "float64": ("float[3] x", "a = Cast <to = 1> (x)"),
    "int32": ("int32[3] x", "a = Cast <to = 1> (x)"),
    "float32": ("seq(float[3]) x", "a = SequenceAt (x, k)"),
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_inputs_in_another_width_go_with_bounds(kind: str) -> None:
    """Floats are fed in the width that the model takes; nothing else is cast."""
    takes, body = WIDTHS[kind]
    model = parse(f"g ({takes}) => (float[3] y) <int64 k = {{0}}> {{ {body} y = Exp (a) }}")
    x: Any = np.array([0, 1, 2], kind)
    if "seq" in takes:
        x = [x]
    found = {"y": np.exp(np.array([0, 1, 2], np.float32))}
    assert verify(model, expect=found, inputs={"x": x}, atol=1e-3).verdict == "within bounds"


def test_names_of_the_framework() -> None:
    theirs = {"logits": stored()["y"], "total": stored()["z"]}
    pixels = {"pixels": X["x"]}
    names = {"logits": "y", "total": "z", "pixels": "x"}
    assert verify(parse(TEXT), expect=theirs, inputs=pixels, map=names).ok
    theirs["logits"] = theirs["logits"] + np.float32(0.5)
    report = verify(parse(TEXT), expect=theirs, inputs=pixels, map=names, atol={"total": 1e-3})
    assert report.verdict == "different" and "logits" in report.summary
    with pytest.raises(InputError, match="'logits' was stored, but the model has no such output"):
        verify(parse(TEXT), expect=theirs, inputs=X)


def test_an_output_of_which_nothing_was_stored_is_no_pass() -> None:
    one = {"y": stored()["y"]}
    report = verify(parse(TEXT), expect=one, inputs=X)
    assert report.verdict == "not proved" and "nothing finite was stored of z" in str(report)
    assert verify(parse(TEXT), expect=one, inputs=X, allow_empty=["z"]).verdict == "equal"
    nan = {"y": np.full((5, 4), np.nan, np.float32), "z": stored()["z"]}
    assert not verify(parse(TEXT), expect=nan, inputs=X)


def test_a_lone_array_is_the_lone_output(tmp_path: Path) -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Exp (x) }")
    x = {"x": np.array([0, 1, 2], np.float32)}
    np.save(tmp_path / "y.npy", np.exp(x["x"]))
    assert verify(model, expect=tmp_path / "y.npy", inputs=x).ok
    with pytest.raises(InputError, match=r"the model has 2 outputs: store them as an \.npz"):
        verify(parse(TEXT), expect=tmp_path / "y.npy", inputs=X)
    (tmp_path / "no.npz").write_text("no")
    with pytest.raises(InputError, match="cannot be read"):
        verify(model, expect=tmp_path / "no.npz", inputs=x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": None}, "stored results need the inputs that produced them: inputs="),
        ({"inputs": [X, X]}, "belong to one set of inputs"),
        ({"inputs": {}}, "'x' is not among"),
        ({"inputs": X, "expect": {}}, "nothing was stored"),
        ({"inputs": X, "b": parse(TEXT)}, "two were given"),
        ({"inputs": X, "checks": ["float32"]}, "unknown check"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify(parse(TEXT), **{"expect": stored(), **options})
    with pytest.raises(InputError, match="pass a second model, or expect="):
        verify(parse(TEXT))


def test_one_leg_alone() -> None:
    report = verify(parse(TEXT), expect=stored(), inputs=X, checks=["float64"])
    assert report.ok and set(report.checks) == {"float64"}


@pytest.mark.parametrize("name", ["bert", "lstmcell"])
def test_packaged_models_give_what_pytorch_gave(name: str) -> None:
    """models/NAME.npz holds inputs and PyTorch's results."""
    path = ROOT / "models" / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = {k[3:]: arrays[k] for k in arrays.files if k.startswith("in:")}
        outputs = {k[4:]: arrays[k] for k in arrays.files if k.startswith("out:")}
    report = verify(path, expect=outputs, inputs=inputs)
    assert report.verdict == "equal" and all(report.compared[k] for k in outputs)


def test_an_output_of_rounding_alone_is_proved_by_its_bits() -> None:
    """As the gradient of a key's bias before a Softmax, or of a convolution's before a normalisation: it is 0."""
    model = parse("""g (float[N,5] x, float[5,7] w) => (float[N,7] p, float[N] z) <int64[1] last = {-1}> {
      p = MatMul (x, w)  m = ReduceMean (p, last)  d = Sub (p, m)  z = ReduceSum <keepdims = 0> (d, last) }""")
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in {"x": (6, 5), "w": (5, 7)}.items()
    }
    results = run(model, feeds)
    assert results["z"].any() and np.abs(results["z"]).max() < 1e-5
    assert verify(model, expect=results, inputs=feeds).ok
    assert edit(model, rename={"z": "zero", "x": "given"}).graph.output[1].name == "zero"
    other = verify(model, expect={**results, "z": -results["z"]}, inputs=feeds)
    assert other.verdict == "not proved" and "differs from itself" in other.summary
    wrong = verify(model, expect={**results, "z": results["z"] + 1}, inputs=feeds)
    assert not wrong.ok
