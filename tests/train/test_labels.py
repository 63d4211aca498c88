"""Labels as data sets store them: every dtype for every loss, and shapes with one axis more or less."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import Trainer, training_step
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import SGD, class_weights
from tests.helpers import parse

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 4)).astype(np.float32)
SPEECH = RNG.normal(size=(6, 5, 4)).astype(np.float32)
BITS = RNG.integers(0, 2, (6, 3))
SIGNS = np.array([1, 1, 0, 1, 0, 1])
ONES = np.ones(6, np.int64)
# text of the loss: the arrays of labels, all of zeros and ones
LOSSES: dict[str, dict[str, Any]] = {
    "cross_entropy": {"labels": SIGNS},
    "cross_entropy{target_dtype=int32}": {"labels": SIGNS},
    "cross_entropy{probabilities=true}": {"labels": np.eye(3, dtype=np.int64)[SIGNS]},
    "cross_entropy{sample_weight=v}": {"labels": SIGNS, "v": SIGNS},
    "sequence_cross_entropy": {"labels": RNG.integers(0, 2, (6, 5))},
    "bce_with_logits": {"labels": BITS},
    "mse": {"target": BITS},
    "l1": {"target": BITS},
    "huber": {"target": BITS},
    "smooth_l1": {"target": BITS},
    "kl_div": {"target": BITS},
    "cosine": {"target": BITS},
    "cosine_embedding": {"labels": SIGNS, "other": BITS},
    "ctc{batch_first=true}": {"labels": ONES[:, None], "input_lengths": 1 + 0 * ONES,
                              "target_lengths": ONES},
}  # fmt: skip
INTEGERS = (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.bool_)


def linear(x: str = "float[N, 4] x", y: str = "float[N, 3] y", columns: int = 3) -> Any:
    model = parse(f"g ({x}) => ({y}) {{ p = MatMul (x, w)  y = Add (p, b) }}", opset=18)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, columns), "b": (columns,)}.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def trainer(loss: str, model: Any = None) -> Trainer:
    return Trainer(training_step(model or linear(), loss, SGD(lr=0.0)), threads=1)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_dtype_of_labels(loss: str) -> None:
    speech = loss.startswith(("sequence", "ctc"))
    model = linear("float[N, 5, 4] x", "float[N, 5, 3] y") if speech else None
    step, arrays = training_step(model or linear(), loss, SGD(lr=0.0)), LOSSES[loss]
    own = Trainer(step, threads=1)
    x = {"x": SPEECH if speech else X}
    types = {fed.name: fed.dtype for fed in step.manifest.of_role("batch")}
    assert set(types) - {"x"} == set(arrays)
    expected = own.evaluate({**x, **{k: a.astype(types[k]) for k, a in arrays.items()}})["loss"]
    assert np.isfinite(expected)
    for dtype in INTEGERS:
        data = {**x, **{k: a.astype(dtype) for k, a in arrays.items()}}
        fresh = Trainer(step, threads=1)
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            found = [fresh.step(data), fresh.step(data), fresh.evaluate(data)["loss"]]
            found += fresh.fit(data, epochs=3, seed=None).losses[1:]
        assert found == pytest.approx([expected] * len(found), rel=1e-6)
        floats = [name for name in arrays if "float" in types[name]]
        words = [f"'{n}' of the data is {np.dtype(dtype)}, and is cast to float32" for n in floats]
        assert [str(n.message) for n in notes if n.category is RunWarning] == words


def test_numbers_that_the_dtype_lacks_are_refused() -> None:
    labels = SIGNS.astype(np.uint64)
    labels[4] = 2**63 + 1
    with pytest.raises(InputError, match=r"'labels' of the batch is 9223372036854775809 at \[4\]"):
        trainer("cross_entropy").step({"x": X, "labels": labels})
    far = np.where(SIGNS, 1, 2**32)  # 0 in 32 bits
    with pytest.raises(InputError, match=r"is 4294967296 at \[2\], which int32 does not hold"):
        trainer("cross_entropy{target_dtype=int32}").step({"x": X, "labels": far})
    with pytest.raises(InputError, match="'x' of the batch is uint8, but the step requires float"):
        trainer("mse").step({"x": X.astype(np.uint8), "target": BITS.astype(np.float32)})


@pytest.mark.parametrize(
    ("loss", "shape", "given"),
    [
        ("mse{target=t}", "N, 1", (6,)),
        ("bce_with_logits{target=t}", "N, 1", (6,)),
        ("l1{target=t}", "N, 1, 1", (6,)),
        ("huber{target=t}", "N, 1, 3", (6, 3)),
        ("mse{target=t}", "N", (6, 1)),
        ("cross_entropy{target=t}", "N, 3", (6, 1)),
    ],
)
def test_an_axis_of_one_element_more_or_less(loss: str, shape: str, given: Any) -> None:
    sizes = [int(d) for d in shape.split(", ")[1:]]
    columns = int(np.prod(sizes))
    model = linear(y=f"float[N, {columns}] y", columns=columns)
    if (columns, len(sizes)) != (sizes[0] if sizes else 0, 1):
        to = ", ".join(map(str, [-1, *sizes]))
        text = f"""g (float[N, {columns}] y) => (float[{shape}] z) {{
            s = Constant <value = int64[{len(sizes) + 1}] {{{to}}}> ()  z = Reshape (y, s) }}"""
        model = onnx.compose.merge_models(model, parse(text, opset=18), [("y", "y")])
    own, labels = trainer(loss, model), RNG.integers(0, 2, given)
    (fed,) = (fed for fed in own.task.manifest.of_role("batch") if fed.name == "t")
    wide = labels.astype(fed.dtype)
    expected = own.step({"x": X, "t": wide.reshape([6, *(d for d in fed.shape or () if d != "N")])})
    with pytest.warns(RunWarning, match=r"'t' of the data is of shape \[N.*and is read as \[N"):
        assert own.step({"x": X, "t": wide}) == expected
    with pytest.raises(InputError, match="'t' of the batch has shape"):
        own.step({"x": X, "t": np.concatenate([wide[None], wide[None]])})


def test_a_shape_that_is_not_clear_is_refused() -> None:
    for given in ((6,), (1, 6), (6, 2)):
        with pytest.raises(
            InputError, match=r"'target' of the batch has shape .*requires \[N, 3\]"
        ):
            trainer("mse").step({"x": X, "target": np.zeros(given, np.float32)})


def test_classes_along_the_last_axis_are_named() -> None:
    words = r"shape \[6, 5\], but the step requires \[N, 3\].*CrossEntropy.axis=-1"
    model = linear("float[N, S, 4] x", "float[N, S, 3] y")
    tokens = {"x": SPEECH, "labels": RNG.integers(0, 3, (6, 5))}
    with pytest.raises(InputError, match=r"axis 1 is open, .*CrossEntropy.axis=-1"):
        trainer("cross_entropy", model)
    five = linear("float[N, 5, 4] x", "float[N, 5, 3] y")
    with pytest.raises(InputError, match=words):
        trainer("cross_entropy", five).step(tokens)
    assert trainer("cross_entropy{axis=-1}", model).step(tokens) > 0
    fixed = linear("float[N, 4, 4] x", "float[N, 4, 3] y")
    with pytest.raises(InputError) as error:
        trainer("cross_entropy", fixed).step({**tokens, "x": SPEECH[:, :4]})
    assert "axis" not in str(error.value)


def test_what_the_labels_of_another_loss_or_name_need() -> None:
    with pytest.raises(InputError, match=r"requires \[N, 3\]: indices of classes need the loss"):
        trainer("mse").step({"x": X, "target": SIGNS})
    one = linear(y="float[N, 1] y", columns=1)
    with pytest.raises(
        InputError, match=r"0 to 0, or -100.*: one score per label needs the loss bce"
    ):
        trainer("cross_entropy", one).step({"x": X, "labels": SIGNS})
    own = trainer("cross_entropy")
    for run in (own.step, own.evaluate):
        with pytest.raises(
            InputError, match=r"lacks 'labels'.*has 'y', which nothing.*target=y of"
        ):
            run({"x": X, "y": SIGNS})  # type: ignore[operator]
    with pytest.raises(InputError, match="the batch lacks 'labels': the inputs are x"):
        own.step({"x": X})


def test_balanced_weights_count_every_dtype() -> None:
    expected = class_weights(np.array([0, 1, 1, 1]))
    for dtype in INTEGERS:
        assert class_weights(np.array([0, 1, 1, 1], dtype)) == expected


def test_the_command_says_each_change_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(linear(y="float[N, 1] y", columns=1), tmp_path / "one.onnx")
    for name in ("data", "held"):
        np.savez(tmp_path / f"{name}.npz", x=X, labels=SIGNS.astype(np.uint8))
    order = ["fit", str(tmp_path / "one.onnx"), "--loss", "bce_with_logits", "--epochs", "3"]
    order += ["--data", str(tmp_path / "data.npz"), "--validation", str(tmp_path / "held.npz")]
    assert main([*order, "--batch-size", "2", "-o", str(tmp_path / "new.onnx")]) == 0
    notes = [n for n in capsys.readouterr().err.splitlines() if n.startswith("note: 'labels'")]
    assert notes == [
        "note: 'labels' of the data is of shape [N], and is read as [N, 1]",
        "note: 'labels' of the data is uint8, and is cast to float32",
    ]
