"""Merged is equal to side by side, and all else is field for field the original."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import Trainer, training_step
from onnxgrad.train.adapters import adapters_of, lora, merge
from onnxgrad.train.export import changed_weights, digest
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT
from tests.train.adapters.common import FORMS, feeds_of, form, moved
from tests.train.adapters.test_lora import inputs_of, quantised, stored
from tests.train.common import classifier

MODELS = ROOT / "models"


@pytest.mark.parametrize("name", FORMS)
def test_merged_equals_side_by_side_both_ways(name: str) -> None:
    model = form(name)
    after = moved(lora(model, "W", rank=2))
    feeds = feeds_of(model)
    expected = run(after, feeds)["y"]
    merged, other = merge(model, adapters_of(after)), merge(after)
    assert merged.SerializeToString(deterministic=True) == other.SerializeToString(
        deterministic=True
    )
    size = np.abs(expected).max()
    np.testing.assert_allclose(run(merged, feeds)["y"], expected, rtol=0, atol=1e-6 * size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "targets"),
    [("gpt2", "*.attn.*,*wte*"), ("bert", "*.self.query,*embeddings.word*"), ("clip", "*_proj")],
)
def test_real_models(name: str, targets: str) -> None:
    path = MODELS / f"{name}.onnx"
    adapted = lora(path, targets, rank=3)
    rng = np.random.default_rng(0)
    small = {
        k: (0.1 * rng.standard_normal(v.shape)).astype(v.dtype)
        for k, v in adapters_of(adapted).values.items()
    }
    adapters = adapters_of(adapted, small)
    merged = merge(path, adapters)
    beside = onnxgrad.train.export(adapted, small)
    feeds = inputs_of(name)
    plain, one, other = (run(m, feeds) for m in (path, merged, beside))
    for k in plain:
        size = np.abs(plain[k]).max()
        assert np.abs(one[k] - plain[k]).max() > 1e-3 * size
        np.testing.assert_allclose(one[k], other[k], rtol=0, atol=1e-5 * size, err_msg=k)
    reference = onnxgrad.verify(merged, beside, inputs=feeds)
    assert reference.ok, str(reference)
    del merged.metadata_props[-1]
    changed = changed_weights(onnx.load(path), merged)
    assert sorted(changed) == sorted(adapters.weights)


def test_taking_adapters_out_gives_the_original_file() -> None:
    path = MODELS / "training" / "gpt2.onnx"
    model = lora(path, "*.attn.*,transformer.wte.weight", rank=2)
    trainer = Trainer(training_step(model, wrt="*.lora_*"), 1e-2)
    batch = stored(path.with_suffix(".npz"))
    for _ in range(3):
        trainer.step(batch)
    trained = trainer.export(model)
    merged, other = merge(trained), merge(path, adapters_of(model, trainer.parameters))
    assert digest(merged) == digest(to_proto(onnxgrad.load(other)))
    feeds = {k: batch[k] for k in batch if k in {v.name for v in other.graph.input}}
    np.testing.assert_allclose(run(other, feeds)["loss"], run(trained, feeds)["loss"], rtol=1e-6)


def test_weights_outside_of_the_file(tmp_path: Path) -> None:
    model = form("matmul")
    onnx.save(
        form("matmul"),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="w",
    )
    adapted = lora(tmp_path / "m.onnx", "W", rank=2)
    after = moved(adapted)
    assert adapters_of(after).base == digest(model) == digest(tmp_path / "m.onnx")
    feeds = feeds_of(model)
    expected = run(merge(model, adapters_of(after)), feeds)["y"]
    merged = merge(tmp_path / "m.onnx", adapters_of(after))
    np.testing.assert_array_equal(run(merged, feeds)["y"], expected)
    assert type(merge(onnxgrad.load(model), adapters_of(after))) is onnxgrad.ir.program.Program


def test_narrow_weights_are_rounded_once() -> None:
    model = form("matmul")
    narrow = onnx.ModelProto()
    narrow.CopyFrom(model)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    narrow.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w.astype(np.float16), "W"))
    for v in (*narrow.graph.input, *narrow.graph.output):
        v.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    adapters = adapters_of(moved(lora(narrow, "W", rank=2)))
    a, b = adapters.factors("W")
    assert a.dtype == np.float16
    exact = w.astype(np.float16) + adapters.scale * (a.astype(np.float64) @ b.astype(np.float64))
    found = onnx.numpy_helper.to_array(merge(narrow, adapters).graph.initializer[0])
    np.testing.assert_array_equal(found, exact.astype(np.float16))


def refused(words: str, *given: Any) -> None:
    with pytest.raises(InputError) as error:
        merge(*given)
    assert words in str(error.value)


def test_what_cannot_be_merged() -> None:
    model = classifier()
    adapted = lora(model, "w1", rank=2)
    adapters = adapters_of(adapted)
    refused("the model has no adapters", model)
    refused("for another model", form("matmul"), adapters)
    refused("merge these first", adapted, adapters)
    q = quantised()
    refused("'W' is quantised and cannot hold", q, adapters_of(moved(lora(q, "W", rank=2))))
    (name,) = json.loads(adapted.metadata_props[-1].value)["added"]
    renamed, swapped = onnx.ModelProto(), onnx.ModelProto()
    for copy in (renamed, swapped):
        copy.CopyFrom(adapted)
    next(n for n in renamed.graph.node if n.name == name).name = "another"
    refused("that adds an adapter's part is gone", renamed)
    node = next(n for n in swapped.graph.node if n.name == name)
    node.input[:] = reversed(node.input)
    refused("is read by more than its adapter", swapped)
    also = onnx.ModelProto()
    also.CopyFrom(adapted)
    also.graph.node.add(op_type="Neg", input=["w1.lora_A"], output=["n"])
    also.graph.output.append(onnx.helper.make_tensor_value_info("n", 1, None))
    refused("is read by more than its adapter", also)
