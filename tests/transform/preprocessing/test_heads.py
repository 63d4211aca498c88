"""Heads of classifiers: in a graph and in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.helpers import parse

MODEL = "g (float[N,4] x) => (float[N,4] y) { y = Neg (x) }"
X = np.array([[1, 0.5, -2, 3], [0, 0, 0.25, 0]], np.float32)


def found(after: Any, model: str = MODEL, x: Any = X, **options: Any) -> dict[str, Any]:
    """What a proved model returns."""
    made = onnxgrad.preprocess(parse(model), after=after, **options)
    return dict(run(made, {"x": x}))


def test_probabilities() -> None:
    e = np.exp(-X.astype(np.float64))
    y = found("softmax")["probabilities"]
    assert np.abs(y - e / e.sum(1, keepdims=True)).max() < 1e-6
    y = found("softmax{axis=0}")["probabilities"]
    assert np.abs(y - e / e.sum(0)).max() < 1e-6
    y = found("sigmoid", x=X * 40)["probabilities"]
    assert np.abs(y - 1 / (1 + np.exp(X.astype(np.float64) * 40))).max() < 1e-6


def test_classes_and_their_labels(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("tench\ngoldfish\nwhite shark\nhen\n", encoding="utf-8")
    best = found(f"argmax{{labels={labels}}}")
    assert best["classes"].tolist() == [2, 0]
    assert best["labels"].tolist() == ["white shark", "tench"]
    top = found(f"softmax,top-k{{k=2,labels={labels}}}")
    assert top["classes"].tolist() == [[2, 1], [0, 1]]
    assert top["labels"].tolist() == [["white shark", "goldfish"], ["tench", "goldfish"]]
    assert np.array_equal(top["scores"], np.sort(found("softmax")["probabilities"])[:, :-3:-1])
    pixels = "g (float[1,4,M] x) => (float[1,4,M] y) { y = Neg (x) }"
    classes = found("argmax{axis=1}", pixels, X.reshape(1, 4, 2))["classes"]
    assert classes.tolist() == (-X.reshape(1, 4, 2)).argmax(1).tolist()


def test_outputs_that_stay() -> None:
    kept = found("argmax", keep_output="y")
    assert list(kept) == ["y", "classes"] and np.array_equal(kept["y"], -X)
    both = "g (float[N,4] x) => (float[N,4] y, float[N,4] scores) { y = Neg (x) scores = Exp (x) }"
    one = found({"scores": "top-k{k=1}"}, both)
    assert list(one) == ["y", "scores", "classes"]
    assert np.allclose(one["scores"][:, 0], np.exp(X).max(1))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("top-k{k=9}", "top-k: k is 9, but 'y' has 4 classes"),
        ("softmax{axis=2}", r"softmax: 'y' is f32\[N,4\], without an axis 2"),
        ("top-k{k=1},softmax", "softmax works on one value, but there are scores, classes"),
        ("argmax,softmax", "softmax needs floating-point numbers, but 'argmax' is i64"),
        ("argmax{labels=none.txt}", "labels: cannot read none.txt: .*No such file"),
        ("argmax{labels=pyproject.toml}", "labels: pyproject.toml has .* lines for 4 classes"),
        ("to-image", "to-image works on boxes, but there is y"),
        ("nms", r"nms works on boxes \[N,A,4\] and scores .*, but there is y: place boxes{format"),
        ("imagenet", "imagenet belongs on the other side of the model"),
        ({"z": "argmax"}, "no output is called 'z'"),
    ],
)
def test_heads_that_do_not_fit(after: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        found(after)


def test_an_empty_file_of_labels(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.touch()
    with pytest.raises(InputError, match="is empty: write one label a line"):
        found(f"argmax{{labels={labels}}}")
