"""New weights belong to the initializers of an original, by place or by name, or the reason is one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from safetensors.numpy import save_file

import onnxgrad
from onnxgrad.errors import InputError
from tests.helpers import parse

TEXT = """g (float[N,2] x) => (float[N,3] y)
<float[2,3] fc_weight = {1, 2, 3, 4, 5, 6}, float[3] fc_bias = {1, 2, 4}, float[3,3] out = {9, 2, 3, 4, 5, 6, 7, 8, 8},
 float half = {0.5}, int64[2] sizes = {-1, 3}> {
  p = MatMul (x, fc_weight)  b = Add (p, fc_bias)  h = Mul (b, half)  r = Reshape (h, sizes)  y = MatMul (r, out) }"""


@pytest.fixture(scope="module")
def done() -> Any:
    return onnxgrad.optimize(parse(TEXT), rebasable=True, report=True)


def values(seed: int = 1, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {
        "fc_weight": rng.normal(size=(2, 3)).astype(np.float32),
        "fc_bias": rng.normal(size=3).astype(np.float32),
        "out": rng.normal(size=(3, 3)).astype(np.float32),
    }
    return {**found, **more}


def exported(arrays: Mapping[str, Any], text: str = TEXT) -> ModelProto:
    model = parse(text)
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return model


def expected(done: Any, arrays: Mapping[str, Any]) -> ModelProto:
    made = onnxgrad.rebase(done.model, exported(arrays), record=done.record)
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    anew = onnxgrad.optimize(exported(arrays))
    for tensor in anew.graph.initializer:
        assert np.array_equal(weights[tensor.name], numpy_helper.to_array(tensor))
    return made


def _unread(*_: Any) -> Any:
    raise AssertionError("an array was read as a whole")


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array,
        lambda array: np.ascontiguousarray(array.T) if array.shape == (2, 3) else array,
        lambda array: array.astype(np.float16),
    ],
    ids=["as they are", "transposed", "narrower"],
)
def test_arrays_that_stay_in_files(
    done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """They are read block by block, and no array of the same file is read as a whole."""
    arrays = {name: change(array) for name, array in values().items()}
    wanted = onnxgrad.rebase(done.model, arrays, record=done.record, verify=False)
    save_file(arrays, tmp_path / "state.safetensors")
    np.savez(tmp_path / "state.npz", **arrays)
    monkeypatch.setattr("onnxgrad.jobs.rebasing.weights.LARGE", 6)
    monkeypatch.setattr("onnxgrad.ir.storage.numpy_files._MAPPED", 0)
    monkeypatch.setattr("onnxgrad.ir.storage.lazy_arrays._BLOCK", 2)
    monkeypatch.setattr("onnxgrad.jobs.rebasing.weights._read_array", _unread)
    for name in ("state.safetensors", "state.npz"):
        given = tmp_path / name
        assert onnxgrad.rebase(done.model, given, record=done.record, verify=False) == wanted


def test_arrays_by_name(done: Any, tmp_path: Path) -> None:
    """A file of weights need not have the numbers of formulas, or sizes: these stay."""
    arrays = values()
    wanted = expected(done, arrays)
    save_file(arrays, tmp_path / "state.safetensors")
    np.savez(tmp_path / "state.npz", **arrays, epoch=np.array(3))
    for given in (arrays, tmp_path / "state.safetensors", str(tmp_path / "state.npz")):
        assert onnxgrad.rebase(done.model, given, record=done.record) == wanted
    more = {**arrays, "half": np.float32(0.25)}
    assert onnxgrad.rebase(done.model, more, record=done.record) != wanted


def test_transposed_matrices(done: Any) -> None:
    """By a shape that says so; a square matrix under another name only by a word."""
    arrays = values()
    wanted = expected(done, arrays)
    turned = {**arrays, "fc_weight": np.ascontiguousarray(arrays["fc_weight"].T)}
    assert onnxgrad.rebase(done.model, turned, record=done.record) == wanted
    turned["head"] = np.ascontiguousarray(turned.pop("out").T)
    with pytest.raises(
        InputError, match=r"'head' is square, so its orientation is unknown: .*head\.T"
    ):
        onnxgrad.rebase(done.model, turned, record=done.record, map={"out": "head"})
    named = {"out": "head.T"}
    assert onnxgrad.rebase(done.model, turned, record=done.record, map=named) == wanted


@pytest.mark.parametrize(
    ("more", "drop", "names", "message"),
    [
        ({}, ["fc_bias", "out"], {}, r"no value for 2 weights of the original: 'fc_bias', 'out'; map"),
        ({"fc_bias": np.ones(4, np.float32)}, [], {}, r"'fc_bias' has the shape \[4\], 'fc_bias' of the original is f32\[3\]: another architecture"),
        ({"fc_bias": np.ones(3)}, [], {}, r"'fc_bias' is float64, 'fc_bias' of the original is f32\[3\]"),
        ({"sizes": np.array([3, -1])}, [], {}, "'sizes' has other values: it decides sizes"),
        ({"fc_bias": [1.0, 2.0, 3.0]}, [], {}, "'fc_bias' is of type list: pass an array of NumPy's"),
        ({}, [], {"nothing": "out"}, "the original has no initializer of this name"),
        ({}, [], {"out": "outs"}, "has no 'outs' .did you mean 'out'"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(
    done: Any, more: Any, drop: list[str], names: Any, message: str
) -> None:
    arrays = {k: v for k, v in values(**more).items() if k not in drop}
    with pytest.raises(InputError, match=message):
        onnxgrad.rebase(done.model, arrays, record=done.record, map=names)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrower_arrays_are_widened(done: Any, dtype: Any, tmp_path: Path) -> None:
    """As checkpoints are often stored: each number of float16 and bfloat16 is one of float32."""
    narrow = {name: array.astype(dtype) for name, array in values().items()}
    wanted = expected(done, {name: array.astype(np.float32) for name, array in narrow.items()})
    save_file(narrow, tmp_path / "state.safetensors")
    for given in (narrow, tmp_path / "state.safetensors"):
        assert onnxgrad.rebase(done.model, given, record=done.record) == wanted


def test_modules_around_all_names(done: Any) -> None:
    """As in a wrapped network; if several beginnings fit, or one name has none, the names are those that are missing."""
    arrays = values()
    wanted = expected(done, arrays)
    around = {f"model.net.{name}": array for name, array in arrays.items()}
    found = onnxgrad.rebase(done.model, {**around, "step": np.array(3)}, record=done.record)
    assert found == wanted
    twice = {**around, **{f"ema.{name}": array for name, array in arrays.items()}}
    for given in (twice, {**around, "model.net.out": arrays["out"], "fc_bias": arrays["fc_bias"]}):
        with pytest.raises(InputError, match=r"no value for [23] weights .* 'out'; map names"):
            onnxgrad.rebase(done.model, given, record=done.record)
    text = TEXT.replace("fc_weight", '"m.fc_weight"').replace("fc_bias", '"m.fc_bias"')
    text = text.replace("out =", '"m.out" =').replace("(r, out)", '(r, "m.out")')
    inner = onnxgrad.optimize(parse(text), rebasable=True, report=True)
    made = onnxgrad.rebase(inner.model, arrays, record=inner.record)
    assert [t.raw_data for t in made.graph.initializer] == [
        t.raw_data for t in wanted.graph.initializer
    ]


class Tensor:
    """As torch's, which becomes an array unless it has a gradient."""

    def __init__(self, array: Any, *, grad: bool = False) -> None:
        self.array, self.grad = array, grad

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return self.array


def test_tensors_of_torch(done: Any) -> None:
    """A state_dict() is a mapping of tensors."""
    arrays = values()
    tensors = {name: Tensor(array) for name, array in arrays.items()}
    assert onnxgrad.rebase(done.model, tensors, record=done.record) == expected(done, arrays)
    tensors["out"] = Tensor(arrays["out"], grad=True)
    with pytest.raises(
        InputError, match=r"'out' is no array of NumPy's: Can't call numpy.* pass one, or"
    ):
        onnxgrad.rebase(done.model, tensors, record=done.record)


def test_another_export(done: Any) -> None:
    """Names may differ where the places are equal; `map` has precedence."""
    arrays = values()
    wanted = expected(done, arrays)
    text = TEXT.replace("fc_weight", "matmul_3").replace("fc_bias", "b7").replace("h =", "q =")
    text = text.replace("(h, sizes)", "(q, sizes)")
    renamed = {"matmul_3": arrays["fc_weight"], "b7": arrays["fc_bias"], "out": arrays["out"]}
    assert onnxgrad.rebase(done.model, exported(renamed, text), record=done.record) == wanted
    other = exported(arrays)
    other.graph.initializer.append(numpy_helper.from_array(np.full(3, 7, np.float32), "ema_bias"))
    found = onnxgrad.rebase(done.model, other, record=done.record, map={"fc_bias": "ema_bias"})
    assert found == expected(done, {**arrays, "fc_bias": np.full(3, 7, np.float32)})


def test_weights_that_one_export_merged() -> None:
    """One weight that two places read is two in the new export: equal, or the model must be optimised anew."""
    text = "g (float[N,2] x) => (float[N,2] y) <float[2] s = {1, 2}> { p = Mul (x, s)  r = Relu (p)  y = Mul (r, s) }"
    apart = text.replace("s = {1, 2}", "s = {3, 4}, float[2] t = {3, 4}").replace(
        "Mul (r, s)", "Mul (r, t)"
    )
    done = onnxgrad.optimize(parse(text), rebasable=True, report=True)
    found = onnxgrad.rebase(done.model, parse(apart), record=done.record)
    onnx.checker.check_model(found)
    with pytest.raises(
        InputError, match="'s' of the original is two weights, 's' and 't', with different"
    ):
        onnxgrad.rebase(done.model, parse(apart.replace("{3, 4}>", "{3, 5}>")), record=done.record)


def test_the_metadata_of_the_new_export(tmp_path: Path) -> None:
    """Comes along, except where `optimize` set an entry; the record fits the result as well."""
    old, new = exported(values(2)), exported(values())
    for model, version in ((old, "1"), (new, "2")):
        model.producer_version = model.doc_string = version
        for key in ("version", "label"):
            model.metadata_props.add(key=key, value=version)
    (tmp_path / "r.toml").write_text('metadata = { label = "mine" }\n')
    options: dict[str, Any] = {"recipe": tmp_path / "r.toml"}
    done = onnxgrad.optimize(old, rebasable=True, report=True, **options)
    found = onnxgrad.rebase(done.model, new, record=done.record)
    assert found == onnxgrad.optimize(new, **options)
    assert {e.key: e.value for e in found.metadata_props} == {"version": "2", "label": "mine"}
    assert onnxgrad.rebase(found, old, record=done.record) == done.model


def test_another_mode() -> None:
    """A trained model is in inference, so it has another architecture than one in training mode."""
    text = """<ir_version: 8, opset_import: ["" : 15]> g (float[2,3] x) => (float[2,3] y) <float[3] s = {1, 2, 3}, float[3] b = {1, 1, 1}> {
      y, m, v = BatchNormalization <training_mode = 1> (x, s, b, b, s) }"""
    done = onnxgrad.optimize(parse(text), rebasable=True, report=True, verify=False)
    new = parse(text.replace(" <training_mode = 1>", "").replace("y, m, v", "y"))
    with pytest.raises(InputError, match="has 1 BatchNormalization in training mode, the new"):
        onnxgrad.rebase(done.model, new, record=done.record)
