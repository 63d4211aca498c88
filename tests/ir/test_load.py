"""What is no usable model is refused in one line; what is legal, however odd, loads and comes out as it went in."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from tests.helpers import parse
from tests.ir.test_round_trip import difference

RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0\0"))
        + chunk(b"IEND", b"")
    )


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    return file.getvalue()


def _edited(edit: Callable[[ModelProto], object], text: str = RELU) -> bytes:
    model = parse(text)
    edit(model)
    return model.SerializeToString()


def _function(*nodes: onnx.NodeProto, name: str = "F") -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]
    return helper.make_function("d", name, ["x"], ["y"], list(nodes), imports)


def _call(name: str, source: str = "x", result: str = "y") -> onnx.NodeProto:
    return helper.make_node(name, [source], [result], domain="d")


WHOLE = parse(RELU).SerializeToString()
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty, not an ONNX model"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "not an ONNX model"),
    "png": (_png(), "not an ONNX model"),
    "text": (b"ir_version: 10\ngraph { node { op_type: 'Relu' } }\n", "not an ONNX model"),
    "zip": (_zip(), "is a PyTorch file: export it to ONNX"),
    "pickle": (pickle.dumps({"weights": [1.0, 2.0]}), "is a Python pickle"),
    "a tensor": (onnx.numpy_helper.from_array(np.ones(3)).SerializeToString(), "not an ONNX model"),
    "no graph": (_edited(lambda m: m.ClearField("graph")), "no graph"),
    "no opset": (_edited(lambda m: m.ClearField("opset_import")), "imports no operator set"),
    "future IR": (
        _edited(lambda m: setattr(m, "ir_version", 99)),
        "IR version 99 is newer .* upgrade onnx",
    ),
    "future opset": (
        _edited(lambda m: setattr(m.opset_import[0], "version", 9999)),
        "unknown opset 9999",
    ),
    "opset 0": (_edited(lambda m: setattr(m.opset_import[0], "version", 0)), "unknown opset 0"),
    "unknown operator": (
        _edited(lambda m: setattr(m.graph.node[0], "op_type", "Frob")),
        "unknown operator Frob at opset 20",
    ),
    "operator of another opset": (
        _edited(
            lambda m: setattr(m.opset_import[0], "version", 8),
            "g (float[2] x) => (float[2] y) { y = Mish(x) }",
        ),
        "unknown operator Mish at opset 8",
    ),
    "default opset missing": (
        _edited(lambda m: setattr(m.opset_import[0], "domain", "d")),
        "default opset",
    ),
    "undefined operand": (
        _edited(lambda m: m.graph.node[0].input.__setitem__(0, "q")),
        "'q' of Relu .* nowhere",
    ),
    "undefined output": (
        _edited(lambda m: setattr(m.graph.output[0], "name", "q")),
        "'q', output .* nowhere",
    ),
    "defined twice": (
        _edited(lambda m: m.graph.node.add().CopyFrom(m.graph.node[0])),
        "'y' is defined twice",
    ),
    "result named like an input": (
        _edited(lambda m: m.graph.node[0].output.__setitem__(0, "x")),
        "'x' is defined tw",
    ),
    "two initializers of a name": (
        _edited(
            lambda m: m.graph.initializer.extend(
                [TensorProto(name="w", data_type=1, float_data=[1.0])] * 2
            )
        ),
        "'w' is defined twice",
    ),
    "cycle": (
        _edited(
            lambda m: None, "g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }"
        ),
        "cycle: a -> b -> a",
    ),
    "cycle through a capture": (
        _edited(
            lambda m: None,
            """g (bool c) => (float[2] y) {
              y = If (c) <then_branch = t () => (float[2] p) { p = Neg(y) },
                          else_branch = e () => (float[2] p) { p = Abs(y) }>
            }""",
        ),
        "cycle: y -> y",
    ),
    "not UTF-8": (WHOLE.replace(b"\x01y", b"\x01\xff"), "not UTF-8"),
    "operator not UTF-8": (WHOLE.replace(b"Relu", b"\xff\xfe\xfd\xfc"), "not UTF-8 text"),
    "function that calls itself": (
        _edited(lambda m: m.functions.extend([_function(_call("F"))])),
        "d::F calls itself",
    ),
    "functions that call each other": (
        _edited(
            lambda m: m.functions.extend([_function(_call("G")), _function(_call("F"), name="G")])
        ),
        "calls itself",
    ),
    "function defined twice": (
        _edited(lambda m: m.functions.extend([_function(_call("H"))] * 2)),
        "d::F is defined twice",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for model in (data, path):
        with pytest.raises(InputError, match=message) as error:
            load(model)
        assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_every_truncation_is_refused_or_a_model() -> None:
    for end in range(len(WHOLE)):
        with contextlib.suppress(InputError):
            load(WHOLE[:end])


def test_missing_file_folder_and_other_types(tmp_path: Path) -> None:
    for model, message in (
        (tmp_path / "none.onnx", "No such file"),
        (tmp_path, "directory"),
        (str(tmp_path / "none" / "m.onnx"), "No such file"),
        (42, "a model must be .* not int"),
    ):
        with pytest.raises(InputError, match=message):
            load(model)


def test_over_two_gigabytes_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)  # sparse
    with pytest.raises(InputError, match=r"over 2 GB .* external data"):
        load(path)


def test_many_calls_of_functions_do_not_blow_up() -> None:
    """2^20 nodes once inlined, which shape inference would go through one by one; 2^30 no runtime opens."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.opset_import.add(domain="d", version=1)
    further = []
    model.graph.node[0].CopyFrom(_call("F19"))
    for i in range(30):
        inner = f"F{i - 1}"
        nodes = (
            [_call(inner, "x", "a"), _call(inner, "a", "y")]
            if i
            else [helper.make_node("Relu", ["x"], ["y"])]
        )
        if i < 20:
            model.functions.append(_function(*nodes, name=f"F{i}"))
        else:
            further.append(_function(*nodes, name=f"F{i}"))
    assert difference(model) == ""
    model.functions.extend(further)
    model.graph.node[0].op_type = "F29"
    with pytest.raises(InputError, match="stand for over 10,000,000 nodes"):
        load(model)


LEGAL: dict[str, str] = {
    "nodes in any order": "g (float[2] x) => (float[2] y) { y = Neg(b) b = Add(a, x) a = Neg(x) }",
    "no nodes": "g (float[2] x) => (float[2] x) { }",
    "unused input and initializer": "g (float[2] x, int64 u) => (float[2] y) <float w = {1}> { y = Relu(x) }",
    "initializer that is an input": "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }",
    "omitted operands and results": """g (float[2] x, float m, int64[2] k) => (float[2] y, float[2,2] z) {
      y = Clip(x, , m)
      t = Expand(x, k)
      z, , s = LayerNormalization(t, t)
    }""",
    "captures two levels deep": """g (bool c, float[2] x) => (float[2] y) {
      a = Neg(x)
      y = If (c) <
        then_branch = t () => (float[2] p) {
          p = If (c) <then_branch = u () => (float[2] q) { q = Abs(a) },
                      else_branch = v () => (float[2] q) { q = Exp(x) }>
        },
        else_branch = e () => (float[2] p) { p = Identity(a) }>
    }""",
    "repeated names in sibling branches": """g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = t () => (float[2] p) { q = Neg(x) p = Abs(q) },
                  else_branch = t () => (float[2] p) { q = Exp(x) p = Abs(q) }>
    }""",
    "sequence, optional": """g (seq(float[2]) s, optional(float[2]) o) => (float[2] y, seq(float[2]) t) {
      k = Constant<value = int64 {0}>()
      v = OptionalGetElement(o)
      t = SequenceInsert(s, v)
      y = SequenceAt(t, k)
    }""",
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_oddities(name: str) -> None:
    model = parse(LEGAL[name])
    program = load(model)
    program.main.check()
    assert to_proto(program) == model
    # written anew in topological order it still means the same
    program.main.changed = True
    after = to_proto(program)
    assert sorted(map(str, after.graph.node)) == sorted(map(str, model.graph.node))
    onnx.checker.check_model(after)


def test_nodes_in_any_order_are_ordered_in_memory_and_typed() -> None:
    block = load(parse(LEGAL["nodes in any order"])).main
    assert [b.out.name for b in block.bindings] == ["a", "b", "y"]
    assert {str(b.out.type) for b in block.bindings} == {"f32[2]"}


DTYPES = """float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0 float4e2m1 bfloat16 int4 uint4 int2 uint2
            int8 uint64 bool float16 double complex64 complex128"""


def _rich() -> ModelProto:
    """A model with everything that no rewrite looks at."""
    model = parse(
        """<ir_version: 13, opset_import: ["" : 24, "d" : 1], producer_name: "p", producer_version: "1", domain: "e",
            model_version: 7, doc_string: "about", metadata_props: ["k": "v"]>
        g (float[N,?] x, map(int64, float) m) => (float[N,?] y) { t = d.F<alpha = 2.0>(x) y = Relu(t) }
        <domain: "d", opset_import: ["" : 24]> F <alpha> (x) => (y) {
          a = Constant<value_float: float = @alpha>()
          y = Mul(x, a)
        }"""
    )
    graph, function = model.graph, model.functions[0]
    graph.doc_string = "graph"
    for holder in (
        graph,
        graph.node[0],
        graph.input[0],
        graph.output[0],
        function,
        function.node[0],
    ):
        holder.metadata_props.add(key="pkg.torch", value="there")
    graph.node[0].doc_string, graph.node[1].name, graph.node[0].overload = "node", "named", "second"
    function.overload, function.doc_string = "second", "function"
    model.functions.add().CopyFrom(function)
    model.functions[1].overload = ""
    function.value_info.add(name="a").type.tensor_type.elem_type = 1
    graph.input[0].doc_string = "input"
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.value_info.add(name="t").type.tensor_type.elem_type = 1
    graph.value_info.add(name="never").type.tensor_type.elem_type = 1
    graph.quantization_annotation.add(tensor_name="t").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="s"
    )
    device = model.configuration.add(name="two")
    device.num_devices = 2
    device.device.extend(["a", "b"])
    spec = (
        graph.node[1]
        .device_configurations.add(configuration_id="two")
        .sharding_spec.add(tensor_name="y")
    )
    spec.device.append(0)
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [5.0])
    graph.sparse_initializer.add(
        values=values, indices=helper.make_tensor("", TensorProto.INT64, [1], [1]), dims=[3]
    )
    info = model.training_info.add()
    info.algorithm.CopyFrom(parse("step (float[2] g) => (float[2] n) { n = Neg(g) }").graph)
    info.update_binding.add(key="s", value="n")
    for name in DTYPES.split():
        number = TensorProto.DataType.Value(name.upper())
        array = np.ones(5).astype(helper.tensor_dtype_to_np_dtype(number))
        graph.initializer.append(onnx.numpy_helper.from_array(array, f"w_{name}"))
    graph.initializer.append(
        helper.make_tensor("w_string", TensorProto.STRING, [2], [b"a", b"\xff"])
    )
    graph.initializer.append(helper.make_tensor("w_float_data", TensorProto.FLOAT, [2], [1.0, 2.0]))
    graph.initializer.append(TensorProto(name="w_empty", data_type=1, dims=[0], doc_string="empty"))
    for kind in ("INTS", "FLOATS", "STRINGS", "TENSORS", "TYPE_PROTOS"):  # empty lists
        graph.node[0].attribute.add(
            name=f"no_{kind}", type=onnx.AttributeProto.AttributeType.Value(kind)
        )
    return model


def test_what_no_rewrite_looks_at_survives() -> None:
    model = _rich()
    assert difference(model) == ""
    program = load(model)
    arrays = {name: v.const for name, v in program.main.initializers.items()}
    others = {"w_empty": 0, "w_string": 2, "w_float_data": 2}
    assert {name: None if a is None else a.size for name, a in arrays.items()} == {
        **dict.fromkeys(arrays, 5),
        **others,
    }
    strings = arrays["w_string"]
    assert strings is not None and strings.tolist() == ["a", b"\xff"], "no text, but legal"
    # a change in one place leaves the rest as it was
    block = program.main
    next(v for v in block.vars() if v.name == "t").rename("u")
    after = to_proto(program)
    expected = ModelProto()
    expected.CopyFrom(model)
    expected.graph.node[0].output[0] = expected.graph.node[1].input[0] = "u"
    del expected.graph.value_info[0]
    assert after.graph.value_info[-1].name == "u", (
        "a new value is declared where the file declares its own"
    )
    del after.graph.value_info[-1]
    assert after == expected


@pytest.mark.parametrize(
    ("ir_version", "overridable", "constant"),
    [(3, False, True), (4, True, False), (10, True, False)],
)
def test_initializers_that_are_inputs(ir_version: int, overridable: bool, constant: bool) -> None:
    text = LEGAL["initializer that is an input"]
    block = load(parse(text, opset=9, ir_version=ir_version)).main
    w = block.inputs[1]
    assert (w.overridable, w.is_constant, w.const is not None) == (overridable, constant, constant)


def test_constant_nodes_are_constants() -> None:
    text = """g () => (float[2] a) {
      a = Constant<value = float[2] {1, 2}>() b = Constant<value_int = 3>() c = Constant<value_floats = [1.0, 2.0]>()
      d = Constant<value_string = "s">() e = Constant<value_ints = [4, 5]>()
    }"""
    a, b, c, d, e = (b.out for b in load(parse(text)).main.bindings)
    assert [v.is_constant for v in (a, b, c, d, e)] == [True] * 5
    assert (b.ints, e.ints, a.ints) == ((3,), (4, 5), None)
    assert [str(v.type) for v in (a, b, c, d, e)] == [
        "f32[2]",
        "i64[]",
        "f32[2]",
        "str[]",
        "i64[2]",
    ]
    assert d.const is not None and d.const.item() == "s"


def test_damaged_weights_are_an_input_error() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    model.graph.initializer[0].ClearField("float_data")
    model.graph.initializer[0].raw_data = b"\0\0\0"
    with pytest.raises(InputError, match="'w' is damaged"):
        load(model)


def test_a_block_stands_for_its_model() -> None:
    block = load(parse(RELU)).main
    assert block.inputs[0].type == TensorType(TensorProto.FLOAT, (2,))


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(InputError, match=r"null (byte|character)"):
        load("a\0b")


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("g (float[2] x, float[2,2] w) => (float y) { y = Gemm(x, w) }", "'x' has 1 axis, not 2"),
        (
            "g (float[2,3] x, int64[2] t, float w) => (float y) "
            "{ y = SoftmaxCrossEntropyLoss(x, t, w) }",
            "'w' has 0 axes, not 1",
        ),
    ],
)
def test_an_operand_of_another_rank_is_a_fault_of_the_model(graph: str, words: str) -> None:
    for job in (onnxgrad.load, onnxgrad.inspect, lambda m: onnxgrad.gradient(m, "x")):
        with pytest.raises(InputError, match=words):
            job(parse(graph))


def test_a_constant_without_outputs_is_a_fault_of_the_model() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.node.append(onnx.helper.make_node("Constant", [], [], value_float=1.0))
    for job in (onnxgrad.inspect, lambda m: onnxgrad.optimize(m, merge="always")):
        with pytest.raises(InputError, match="Constant '': it has no output"):
            job(model)


@pytest.mark.parametrize("opset", [1, 4])
def test_reshape_with_its_target_as_an_attribute(opset: int) -> None:
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 6]), ("y", [4, 3]))
    )
    nodes = [
        onnx.helper.make_node("Reshape", [a], [b], shape=shape)
        for a, b, shape in (("x", "t", [3, 4]), ("t", "y", [4, 3]))
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=3,
    )
    assert str(onnxgrad.load(model).main.outputs[0].type) == "f32[?,?]"
    assert len(onnxgrad.optimize(model).graph.node) <= 2
    assert onnxgrad.inspect(model).stats.nodes == 2
    assert onnxgrad.gradient(model, "x", adjoint="input").graph.output[-1].name == "x_grad"
