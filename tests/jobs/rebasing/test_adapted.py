"""An export and the adapters that were trained beside it are new weights; adapters alone are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.adapters import (
    adapters_of,
    lora,
    merge,
    save_adapters,
    save_onnxruntime,
    save_peft,
)
from tests.helpers import parse
from tests.jobs.rebasing.test_rebase import optimized

TEXT = """g (float[N,4] x) => (float[N,3] y) {
  t = Transpose ("fc.weight")  p = MatMul (x, t)  r = Relu (p)  y = MatMul (r, "out.weight") }"""


def network(seed: int) -> onnx.ModelProto:
    model, rng = parse(TEXT), np.random.default_rng(seed)
    for name, shape in (("fc.weight", (5, 4)), ("out.weight", (5, 3))):
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for node, module in zip(model.graph.node, ("fc", "fc", "act", "out"), strict=True):
        node.name = f"/{module}/{node.op_type}"
    return model


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """A base and trained adapters beside it, in each form."""
    base = network(1)
    added = lora(base, "*", rank=2, seed=3)
    rng = np.random.default_rng(4)
    values = {
        n: rng.normal(size=v.shape).astype(np.float32) for n, v in adapters_of(added).values.items()
    }
    found = adapters_of(added, values)
    onnx.save(base, tmp_path / "base.onnx")
    save_adapters(found, tmp_path / "a.safetensors")
    save_peft(added, tmp_path / "peft", values)
    save_onnxruntime(added, tmp_path / "a.onnx_adapter", values)
    return {"base": base, "memory": found, "merged": merge(base, found), "folder": tmp_path}


@pytest.mark.parametrize("form", ["a.safetensors", "peft", "memory"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_export_and_its_adapters(files: dict[str, Any], form: str, order: int) -> None:
    """Into the optimised base, or an optimised file with other adapters merged: as optimising the merged model anew."""
    adapter = files.get(form, files["folder"] / form)
    anew = onnxgrad.optimize(files["merged"])
    for old in (files["base"], network(7), merge(files["base"], files["memory"])):
        done = optimized(old)
        given = [files["folder"] / "base.onnx", adapter][::order]
        found = onnxgrad.rebase(done.model, given, record=done.record)
        assert found.graph == anew.graph


@pytest.mark.parametrize("form", ["a.safetensors", "peft", "a.onnx_adapter", "memory"])
def test_adapters_alone(files: dict[str, Any], form: str) -> None:
    done = optimized(files["base"], verify=False)
    adapter = files.get(form, files["folder"] / form)
    with pytest.raises(
        InputError, match=r"holds adapters without the weights .*=\[BASE, ADAPTER\]"
    ):
        onnxgrad.rebase(done.model, adapter, record=done.record)


def test_what_does_not_go_together(files: dict[str, Any]) -> None:
    done, folder = optimized(files["base"], verify=False), files["folder"]
    adapter, base = folder / "a.safetensors", folder / "base.onnx"
    for given, words in (
        ([network(2), adapter], "other model|another model|belong"),
        ([base, folder / "a.onnx_adapter"], "onnxruntime's form, which lacks rank and scale"),
        ([base, base], "one export or file, or an export and one adapter"),
        ([base, adapter, folder / "peft"], "one export or file, or an export and one adapter"),
        ([{"w": np.zeros(1)}, adapter], "not into a file of weights: name its export"),
        ([lora(network(1), "*", rank=2), adapter], "has adapters beside its weights already"),
    ):
        with pytest.raises(InputError, match=words):
            onnxgrad.rebase(done.model, given, record=done.record)


def test_an_optimised_model_with_adapters_takes_trained_ones(files: dict[str, Any]) -> None:
    """Its adapters are weights as others: those of the new model were merged, which made another architecture of it."""
    old = lora(files["base"], "*", rank=2, seed=5)
    trained = lora(network(2), "*", rank=2, seed=6)
    for tensor in trained.graph.initializer:
        if tensor.name.endswith("lora_B"):
            value = np.full(tuple(tensor.dims), 0.25, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    done = optimized(old, verify=False)
    found = onnxgrad.rebase(done.model, trained, record=done.record)
    x = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    wanted = onnxgrad.run(trained, inputs=x)["y"]
    assert np.allclose(onnxgrad.run(found, inputs=x)["y"], wanted, atol=1e-5)
    assert not np.allclose(wanted, onnxgrad.run(network(2), inputs=x)["y"], atol=0.1)
