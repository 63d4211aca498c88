"""Shapes that a model declares for values between inputs and outputs, against its runs."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.verify import declared_shapes, proof_model
from onnxgrad.verify.declared_shapes import DeclaredShapes
from onnxgrad.verify.feeds.dims import evaluate, symbols_in
from onnxgrad.verify.proof import verify
from onnxgrad.verify.report import Case
from onnxgrad.verify.request import Settings
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.trials import Trial
from tests.helpers import parse

MODEL = "g (float[N,M] x) => (float[K] y) { r = Relu(x) f = Flatten<axis = 0>(r) i = Constant<value = int64 {0}>() y = Gather<axis = 0>(f, i) }"


def declared(**shapes: list[int | str]) -> onnx.ModelProto:
    model = parse(MODEL)
    for name, dims in shapes.items():
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        model.graph.value_info.append(info)
    return model


@pytest.mark.parametrize(
    "shapes",
    [{"r": ["N", "M"], "f": [1, "M*N"]}, {"f": [1, "others"]}, {"r": ["N", "max(M, 1)"]}, {}],
)
def test_shapes_that_runs_do_not_contradict(shapes: dict[str, list[int | str]]) -> None:
    assert verify(parse(MODEL), declared(**shapes), seeds=(0,)).ok


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"f": [1, "M + N"]}, "'f' is declared [1, "),
        ({"r": ["N", "M + 1"]}, "'r' is declared [2, "),
        ({"r": ["N", "min(M, 1)"]}, "is declared [2, 1]"),
    ],
)
def test_wrong_shapes_are_named(shapes: dict[str, list[int | str]], reason: str) -> None:
    report = verify(parse(MODEL), declared(**shapes), seeds=(0,))
    assert not report.ok
    assert "declared shapes are wrong" in report.summary and reason in report.summary


def test_what_the_original_declares_is_not_judged() -> None:
    lie = declared(f=[1, "M + N"])
    assert verify(lie, lie, seeds=(0,)).ok


def test_shapes_that_cannot_be_compared_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The verdict is that of the outputs, and a note says what was not looked at."""
    model = declared(r=["N", "M + 1"], f=[1, "M*N"])
    with monkeypatch.context() as patched:
        patched.setattr(declared_shapes, "TWO_GB", 10)
        report = verify(parse(MODEL), model, seeds=(0,))
        large = tmp_path / "m.onnx"
        onnx.save(model, large)
        assert verify(parse(MODEL), large, seeds=(0,)).notes == report.notes
    assert report.ok
    assert report.notes == ("declared shapes of 2 values not checked: the model passes 2 GB",)

    def refused(*args: object) -> onnx.ModelProto:
        made = right(*args)
        made.graph.node[-1].op_type = "Shaped"
        return made

    right = declared_shapes._with_shapes
    monkeypatch.setattr(declared_shapes, "_with_shapes", refused)
    report = verify(parse(MODEL), model, seeds=(0,))
    assert report.ok and len(report.notes) == 1
    assert report.notes[0].startswith("declared shapes of 2 values not checked: ")
    assert "Shaped" in report.notes[0]
    assert verify(parse(MODEL), parse(MODEL), seeds=(0,)).notes == ()


@pytest.mark.parametrize(
    ("formula", "names", "size"),
    [
        ("max(n - 2, 0)", {"n"}, 3),
        ("-(n//2) + x.1", {"n", "x.1"}, 5),
        ("2*'a b' + Min(n, 3)", {"a b", "n"}, 11),
        ("floor(n/2)", {"n"}, 2),
        ("size(n)", {"size(n)"}, 9),  # no function
    ],
)
def test_formulas(formula: str, names: set[str], size: int) -> None:
    assert symbols_in(formula) == names
    assert evaluate(formula, {"n": 5, "x.1": 7, "a b": 4, "size(n)": 9}) == size


@pytest.mark.parametrize("outside", [False, True])
def test_the_weights_of_a_file_stay_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outside: bool
) -> None:
    """Wrong shapes of a file are found without its weights in this process."""
    monkeypatch.setattr(proof_model, "LARGE_FILE", 0)
    model = parse("g (float[1,512] x) => (float[1,512] y) { m = MatMul (x, w) y = Relu (m) }")
    weight = np.eye(512, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "m.onnx"
    for size, wrong in ((512, False), (511, True)):
        del model.graph.value_info[:]
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("m", 1, [1, size]))
        onnx.save(copy.deepcopy(model), path, save_as_external_data=outside, location=f"d{size}")
        made = proof_model.proof_model(path)
        assert made.apart()[0].ByteSize() < 2000 and made.apart()[1] == str(tmp_path)
        found = proof_model.ProofModel(
            path, made.proto, lambda: pytest.fail("the weights are read")
        )
        plain = parse("g (float[1,512] x) => (float[1,512] y) { y = Relu (x) }")
        shapes = DeclaredShapes(proof_model.proof_model(plain), found, Settings("cpu", 1))
        feeds = {"x": np.ones((1, 512), np.float32)}
        reasons, notes = shapes.contradictions([Trial(Case({}, 0), feeds, {})])
        assert bool(reasons) == wrong and not notes


def test_shapes_of_earlier_runs_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wrong = (proof_model.proof_model(m) for m in (parse(MODEL), declared(r=["M", "N"])))
    shapes = DeclaredShapes(plain, wrong, Settings("cpu", 1))
    feeds = {"x": np.ones((2, 3), np.float32)}
    shapes.run_ahead([feeds])
    monkeypatch.setattr(Session, "run", lambda *words, **more: pytest.fail("runs again"))
    reasons, notes = shapes.contradictions([Trial(Case({}, 0), feeds, {})])
    assert "'r' is declared [3, 2] and is [2, 3]" in reasons[0] and not notes


def test_a_failure_ahead_is_left_to_the_check() -> None:
    model = declared(r=["N", "M"])
    model.graph.node[0].op_type = "NoSuch"
    plain, broken = (proof_model.proof_model(m) for m in (parse(MODEL), model))
    shapes = DeclaredShapes(plain, broken, Settings("cpu", 1))
    feeds = {"x": np.ones((2, 3), np.float32)}
    shapes.run_ahead([feeds])
    reasons, notes = shapes.contradictions([Trial(Case({}, 0), feeds, {})])
    assert not reasons and "not checked" in notes[0]
