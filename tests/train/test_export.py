"""Trained weights come back into the original, wherever it keeps them; nothing else moves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import onnxgrad
from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir.program import Program
from onnxgrad.train import Trainer, save_step, training_step
from onnxgrad.train.export import KEY, changed_weights, digest, export
from onnxgrad.verify.running.session import run
from tests.helpers import MODELS_DIR, parse
from tests.train.common import classifier

INSIDE = """<ir_version: 8, opset_import: ["": 18]>
g (float[2] x, bool c) => (float[2] y) {
    k = Constant <value = float[2] {1, 2}> ()
    y = If (c) <then_branch = t () => (float[2] a) { w = Constant <value = float[2] {3, 4}> ()
        a = Mul (x, w) }, else_branch = e () => (float[2] b) { b = Add (x, k) }>
}"""


def test_constants_of_nodes_and_of_branches() -> None:
    model = onnx.parser.parse_model(INSIDE)
    before = model.SerializeToString(deterministic=True)
    new = {"k": np.float32([5, 6]), "w": np.float32([7, 8])}
    out = export(model, new, {"steps": 3})
    assert model.SerializeToString(deterministic=True) == before
    assert sorted(changed_weights(model_without(out), model)) == ["k", "w"]
    said = {e.key: e.value for e in out.metadata_props}
    assert json.loads(said[KEY]) == {"weights": ["k", "w"], "steps": 3}
    again = export(out, {"k": np.float32([0, 0])})
    assert [e.key for e in again.metadata_props] == [KEY]


def model_without(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its metadata."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    return bare


def test_a_dtype_is_kept_and_external_data_too(tmp_path: Path) -> None:
    model = classifier()
    for t in model.graph.initializer:
        if t.name == "w1":
            t.CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 16), np.float16), "w1"))
    onnx.save(
        model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data", size_threshold=0
    )
    before = (tmp_path / "a.data").read_bytes()
    values = {"w1": np.full((8, 16), 2.0, np.float32), "b2": np.float32([1, 2, 3])}
    export(tmp_path / "a.onnx", values, path=tmp_path / "b.onnx")
    found = {t.name: t for t in onnx.load(tmp_path / "b.onnx").graph.initializer}
    assert found["w1"].data_type == onnx.TensorProto.FLOAT16
    for name, value in values.items():
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(found[name]), value)
    original = {t.name: t for t in classifier().graph.initializer}
    assert onnx.numpy_helper.to_array(found["w2"]).tobytes() == (
        onnx.numpy_helper.to_array(original["w2"]).tobytes()
    )
    assert (tmp_path / "a.data").read_bytes() == before


def test_a_real_model_differs_in_its_trained_weights_only() -> None:
    path = MODELS_DIR / "training" / "bert.onnx"
    model = onnx.load(path)
    names = {t.name for t in model.graph.initializer}
    name = next(n for n in sorted(names) if n.endswith("pooler.dense.bias"))
    shape = next(tuple(t.dims) for t in model.graph.initializer if t.name == name)
    out = model_without(export(path, {name: np.zeros(shape, np.float32)}))
    assert changed_weights(model_without(model), out) == [name]


def test_the_kind_that_was_given_comes_back(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "a.onnx", save_as_external_data=True, size_threshold=0)
    values = {"b2": np.float32([1, 2, 3])}
    models = [
        tmp_path / "a.onnx", classifier(), classifier().SerializeToString(),
        onnxgrad.load(classifier()), onnx_ir.from_proto(classifier()),
    ]  # fmt: skip
    kinds = [onnx.ModelProto, onnx.ModelProto, onnx.ModelProto, Program, onnx_ir.Model]
    x = np.ones((2, 8), np.float32)
    expected = None
    for model, kind in zip(models, kinds, strict=True):
        found = export(model, values)
        assert type(found) is kind
        y = run(onnxgrad.to_proto(onnxgrad.load(found)), {"x": x})["logits"]
        expected = y if expected is None else expected
        np.testing.assert_array_equal(y, expected)


def test_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(classifier(), path)
    values = {"b2": np.float32([1, 2, 3])}
    assert export(path, values, path=tmp_path / "b.onnx") is None
    assert onnx.load(tmp_path / "b.onnx") == export(path, values)
    for model in (path, str(path), onnxgrad.load(path)):
        with pytest.raises(InputError, match="output and input are the same file"):
            export(model, values, path=path)
    with pytest.raises(InputError, match="cannot be written"):
        export(path, values, path=tmp_path / "nowhere" / "b.onnx")


def test_a_file_with_large_weights_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes as at once; a tied copy and a new bias too, over an older output."""
    path, rng = tmp_path / "a.onnx", np.random.default_rng(0)
    model = parse(
        "g (int64[B,N] i, float[B,N,256] x) => (float[B,N,512] y) "
        "{ e = Gather (table, i)  s = Add (e, x)  h = MatMul (s, w)  y = MatMul (h, copy) }"
    )
    table = rng.standard_normal((512, 256)).astype(np.float32)
    w = rng.standard_normal((256, 256)).astype(np.float32)
    for name, a in {"table": table, "w": w, "copy": np.ascontiguousarray(table.T)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(a, name))
    onnx.save(model, path)
    step = training_step(path, "sequence_cross_entropy{shift=0}", wrt=["table", "copy"])
    repairs, values = step.manifest.repairs, {"table": table + 1}
    assert repairs.tied
    module: Any = sys.modules[export.__module__]
    made, ways = module.pieces, []

    def pieces(*given: Any) -> Any:
        ways.append(given)
        return made(*given)

    monkeypatch.setattr(module, "pieces", pieces)
    for _ in range(2):
        assert export(path, values, repairs=repairs, path=tmp_path / "b.onnx") is None
    assert len(ways) == 2
    whole = export(path, values, repairs=repairs)
    assert (tmp_path / "b.onnx").read_bytes() == whole.SerializeToString()
    found = {t.name: onnx.numpy_helper.to_array(t) for t in whole.graph.initializer}
    np.testing.assert_array_equal(found["copy"], table.T + 1)
    np.testing.assert_array_equal(found["w"], w)
    before = (tmp_path / "b.onnx").read_bytes()
    with pytest.raises(InputError, match="has shape"):
        export(path, {"w": w[:1]}, path=tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nothing": np.zeros(2)}, "'nothing' is not a weight of the original"),
        ({"k": np.zeros(3)}, r"has shape \[3\] after training, \[2\] in the model"),
        ({"x": np.zeros(2)}, "'x' is not a weight"),
    ],
)
def test_what_cannot_be_written_back(values: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InputError, match=words):
        export(onnx.parser.parse_model(INSIDE), values)


def test_more_than_weights_is_found() -> None:
    one, two = classifier(), classifier()
    two.graph.node[0].op_type = "Gemm"
    with pytest.raises(InternalError, match="in more than weights"):
        changed_weights(one, two)


def outside(folder: Path, scale: float) -> Path:
    """The classifier with its weights in an external file, multiplied."""
    folder.mkdir()
    model = classifier()
    for t in model.graph.initializer:
        t.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t) * np.float32(scale), t.name)
        )
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    return folder / "m.onnx"


def test_where_weights_lie_is_no_difference_and_what_they_are_is(tmp_path: Path) -> None:
    one, two = outside(tmp_path / "a", 1.0), outside(tmp_path / "b", 2.0)
    assert one.read_bytes() == two.read_bytes()
    assert digest(one) == digest(classifier()) != digest(two)


def test_a_checkpoint_is_not_taken_for_a_model_with_other_external_weights(tmp_path: Path) -> None:
    one, two = (outside(tmp_path / name, scale) for name, scale in (("a", 1.0), ("b", 2.0)))
    steps = [training_step(path, "cross_entropy") for path in (one, two)]
    save_step(steps[0], tmp_path / "step")
    Trainer(tmp_path / "step", threads=1).save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="of another model"):
        Trainer(steps[1], threads=1).restore(tmp_path / "checkpoint")
