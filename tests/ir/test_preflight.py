"""What no runtime can make sense of is refused on reading, in one line that names it; what is legal is not."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.preflight.other_formats import FIRST_BYTES, format_of
from onnxgrad.ir.preflight.tensors import check_tensor
from tests.backend_suite import usable
from tests.helpers import ROOT, parse
from tests.hostile.build import external, graph, model, node, raw, tensor, value

ADD = [node("Add", "x w", "y")]
IMAGE = value("x", (1, 2, 8, 8))


def nested(depth: int) -> onnx.ModelProto:
    inner = graph([node("Relu", "x", "y0")], outputs=[value("y0", None)])
    for i in range(depth):
        choice = helper.make_node(
            "If", ["c"], [f"y{i + 1}"], then_branch=inner, else_branch=graph([])
        )
        inner = graph([choice], outputs=[value(f"y{i + 1}", None)])
    return model([node("Cast", "x", "c", to=9), *inner.node, node("Identity", f"y{depth}", "y")])


def typed(code: int) -> onnx.ModelProto:
    made = model([node("Relu", "x", "y")])
    made.graph.input[0].type.tensor_type.elem_type = code
    return made


def with_attribute(**fields: object) -> onnx.ModelProto:
    made = model([node("Concat", "x x", "y")])
    made.graph.node[0].attribute.add(name="axis", **fields)
    return made


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "input of no dtype": (typed(0), "dtype 0"),
    "input of an unknown dtype": (typed(999), "dtype 999"),
    "weight of an unknown dtype": (model(ADD, [raw("w", [1], bytes(4), 999)]), "'w' has the dtype 999"),
    "weight of no dtype": (model(ADD, [raw("w", [1], bytes(4), 0)]), "'w' has the dtype 0"),
    "Constant of an unknown dtype": (model([node("Constant", "", "y", value=raw("c", [1], bytes(4), -1))]), "dtype -1"),
    "negative size": (model(ADD, [raw("w", [-1], bytes(4))]), "the size -1"),
    "rank 300": (model(ADD, [raw("w", [1] * 300, bytes(4))]), "300 axes"),
    "input of rank 300": (model(ADD, x=value("x", [1] * 300)), "300 axes"),
    "short raw_data": (model(ADD, [raw("w", [2, 3], bytes(23))]), r"23 bytes, its sizes \(2, 3\) require 24"),
    "short float_data": (model(ADD, [TensorProto(name="w", data_type=1, dims=[2], float_data=[1])]), "1 values"),
    "huge and empty": (model(ADD, [raw("w", [2**62, 2**62])]), "holds 0 bytes"),
    "offset of 5000 digits": (model(ADD, [external("w", [2], location="a", offset="9" * 5000)]), "offset of its"),
    "length of letters": (model(ADD, [external("w", [2], location="a", length="1e3")]), "length of its"),
    "external data nowhere": (model(ADD, [external("w", [2])]), "not named"),
    "stride 0": (model([node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[0, 1])], x=IMAGE), "'strides' is"),
    "kernel 2^31": (model([node("MaxPool", "x", "y", kernel_shape=[2**31, 1])], x=IMAGE), "'kernel_shape' is"),
    "group 0": (model([node("Conv", "x w", "y", group=0)], x=IMAGE), "'group' is"),
    "group -1": (model([node("Conv", "x w", "y", group=-1)], x=IMAGE), "'group' is"),
    "a float for an axis": (with_attribute(type=AttributeProto.FLOAT, f=1.0), "is of type FLOAT, not INT"),
    "an attribute that the operator lacks": (
        model([node("Conv", "x w", "y", padding=[0, 0])], x=IMAGE), "no attribute 'padding'"
    ),
    "an attribute without type": (with_attribute(i=1), "has no type"),
    "a reference outside a function": (
        with_attribute(type=AttributeProto.INT, ref_attr_name="a"), "outside of any function"
    ),
    "nested too deep": (nested(26), "nested over 24 deep"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    made, words = REFUSED[what]
    with pytest.raises(InputError, match=f"^here: .*{words}"):
        check_model(made, "here")


@pytest.mark.slow
def test_the_suite_passes() -> None:
    for case in usable():
        check_model(case.model, case.name)


def test_legal_models_pass() -> None:
    check_model(nested(20), "here")
    check_model(model(ADD, [external("w", [2], location="a", offset="0", length="8")]), "here")


@pytest.mark.parametrize("dtype", sorted(set(TensorProto.DataType.values()) - {0, 8, 27, 28}))
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_every_dtype_in_both_forms_of_data(dtype: int, count: int) -> None:
    """helper.make_tensor knows how many entries of which field a tensor takes."""
    values = np.zeros(count, helper.tensor_dtype_to_np_dtype(dtype))
    check_tensor(numpy_helper.from_array(values, "w"), "here")
    typed = helper.make_tensor("w", dtype, [count], values)
    check_tensor(typed, "here")
    typed.dims[0] += 8
    with pytest.raises(InputError, match="is damaged"):
        check_tensor(typed, "here")


def test_strings() -> None:
    check_tensor(tensor("w", ["a", "b"], object), "here")
    with pytest.raises(InputError, match="is damaged"):
        check_tensor(TensorProto(name="w", data_type=8, dims=[3], string_data=[b"a"]), "here")


def archive(name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, bytes(600))
    return made.getvalue()


HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
# the first bytes of files that are no ONNX models -> what the error says of them
FORMATS: dict[str, tuple[bytes, str]] = {
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n", "run `git lfs pull`"),
    "torch": (archive("archive/data.pkl"), "a PyTorch file: export"),
    "TorchScript": (b"PK\x03\x04" + bytes(22) + b"\x0e\0\x14\0archive/data/0FB\x10\0" + b"Z" * 16, "a PyTorch file"),
    "old torch": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a PyTorch file"),
    "pickle": (pickle.dumps({"w": 1}, 2), "a Python pickle"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(60), "TensorFlow Lite"),
    "ort": (b"\x18\0\0\0ORTM" + bytes(60), "ORT format"),
    "gzip": (gzip.compress(b"model"), "gunzip"),
    "zip": (archive("model.onnx"), "a zip archive: unpack"),
    "npz": (archive("w.npy"), "an .npz file"),
    "page": (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a web page"),
    "XML": (b"<?xml version='1.0'?><net/>", "an XML file"),
    "JSON": (b'\xef\xbb\xbf{\n  "nodes": []\n}', "a JSON file"),
    "safetensors": (len(HEADER).to_bytes(8, "little") + HEADER + bytes(4), "a safetensors file"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_other_formats(name: str, tmp_path: Path) -> None:
    """The format of a file decides its error, in a file and in bytes."""
    data, words = FORMATS[name]
    (path := tmp_path / "model.onnx").write_bytes(data)
    for given in (path, data):
        with pytest.raises(InputError, match=f": is .*{re.escape(words)}") as error:
            load(given)
        assert "\n" not in str(error.value)


def test_models_have_no_other_format() -> None:
    """No model begins like another format, and neither do damaged ones, text and pictures."""
    for path in (ROOT / "models").glob("*.onnx"):
        assert format_of(path.read_bytes()[:FIRST_BYTES]) == "", path
    for data in (
        b"",
        b"\x08\x0a",
        b"Dear reader",
        b"\x89PNG\r\n\x1a\n",
        b"<a",
        b"{a",
        b"PK",
        b"{'",
    ):
        assert format_of(data) == "", data


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    """The file, its place, a file of a near name, and a pointer in place of the weights."""
    made = model(ADD, [external("w", [64], location="w.data", offset="0")])
    (path := tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    wanted = re.escape(str(tmp_path / "w.data"))

    def fault() -> str:
        with pytest.raises(InputError) as error:
            load(path).main.initializers["w"].const  # noqa: B018  # reads the weights
        return str(error.value)

    assert re.search(f"'w' cannot be read: its file is missing, expected at {wanted}$", fault())
    (tmp_path / "w.dat").write_bytes(bytes(8))
    assert fault().endswith("(did you mean 'w.dat'?)")
    (tmp_path / "w.data").write_bytes(FORMATS["LFS"][0])
    assert re.search("'w' cannot be read: .*w.data is a Git LFS pointer", fault())


@pytest.mark.parametrize(
    ("node", "opset", "reason"),
    [
        ("ReduceMax <axes = [7]> (x)", 13, "ReduceMax '': its operand of 2 axes has no axis 7"),
        ("ReduceMean (x, a)", 20, "ReduceMean '': its operand of 2 axes has no axis -3"),
        ("Squeeze (x, a)", 20, "Squeeze '': its operand of 2 axes has no axis -3"),
        ("Unsqueeze (x, b)", 20, "Unsqueeze '': its result of 3 axes has no axis 3"),
        ("ReduceMax <axes = [-2, 1]> (x)", 13, ""),
        ("Unsqueeze (x, a)", 20, ""),
        ("ReduceSum (x, b)", 20, "ReduceSum '': its operand of 2 axes has no axis 3"),
    ],
)
def test_axes_that_an_operand_lacks(node: str, opset: int, reason: str) -> None:
    """In an attribute, and in a constant."""
    text = "g (float[3,2] x) => (float y) <int64[1] a = {-3}, int64[1] b = {3}> { y = %s }"
    made = parse(text % node, opset=opset)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    if not reason:
        load(made)
        return
    with pytest.raises(InputError, match=re.escape(reason)):
        load(made)
