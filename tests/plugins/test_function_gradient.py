"""SPEC, added after a second reading, S2: the gradient of a named local function as a function of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal

# `layer` calls another function; its calls have two sizes
TEXT = """<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]>
g (float[4,3] x, float[3,2] w, float[2] b, float[5,2] z, float[2,2] v) => (float[4,2] y, float[5,2] u) {{
    y = my.layer (x, w, b)
    u = my.layer (z, v, b)
}}
<domain: "my", opset_import: ["" : {opset}]> act (a) => (c) {{ c = Tanh (a) }}
<domain: "my", opset_import: ["" : {opset}, "my" : 1]> layer (x, w, b) => (c) {{ p = MatMul (x, w) q = Add (p, b) c = my.act (q) }}"""


def model(opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT.format(opset=opset))


@pytest.mark.parametrize("opset", [13, 21])
def test_a_function_beside_the_function(opset: int) -> None:
    made = onnxgrad.function_gradient(model(opset), "layer")
    onnx.checker.check_model(made)
    assert [f.name for f in made.functions] == ["act", "layer", "layer_grad"]
    function = made.functions[-1]
    assert list(function.input) == ["x", "w", "b", "c_grad"]
    assert list(function.output) == ["x_grad", "w_grad", "b_grad"]
    before, after = (run(m, feeds()) for m in (model(opset), made))
    for name in ("y", "u"):
        np.testing.assert_array_equal(before[name], after[name])
    # its calls give what the gradient of the graph gives, at both sizes
    for operands, target in ((["x", "w", "b"], "y"), (["z", "v", "b"], "u")):
        calling = onnx.ModelProto()
        calling.CopyFrom(made)
        shape = before[target].shape
        calling.graph.input.append(
            helper.make_tensor_value_info("seed", onnx.TensorProto.FLOAT, shape)
        )
        grads = [f"{n}_of_call" for n in operands]
        calling.graph.node.append(
            helper.make_node("layer_grad", [*operands, "seed"], grads, domain="my")
        )
        calling.graph.output.extend(onnx.ValueInfoProto(name=n) for n in grads)
        for o, n in zip(calling.graph.output[2:], operands, strict=True):
            o.type.CopyFrom(next(v.type for v in made.graph.input if v.name == n))
        seed = normal(*shape, seed=7)
        found = run(calling, {**feeds(), "seed": seed})
        graph = onnxgrad.gradient(model(opset), operands, target, adjoint="input")
        expected = run(graph, {**feeds(), f"{target}_grad": seed})
        for n in operands:
            np.testing.assert_allclose(
                found[f"{n}_of_call"], expected[f"{n}_grad"], rtol=1e-5, atol=1e-6
            )


def feeds() -> dict[str, np.ndarray]:
    return {
        "x": normal(4, 3),
        "w": normal(3, 2),
        "b": normal(2),
        "z": normal(5, 2),
        "v": normal(2, 2),
    }


def test_the_command_line_proves_it_at_a_call(tmp_path: Path) -> None:
    source, target = str(tmp_path / "m.onnx"), str(tmp_path / "g.onnx")
    onnx.save(model(), source)
    assert main(["grad", source, "--function", "my::layer", "-o", target]) == 0
    assert [f.name for f in onnx.load(target).functions] == ["act", "layer", "layer_grad"]
    assert main(["grad", source, "--function", "other", "-o", target]) == 2
    assert main(["grad", source, "--function", "layer", "--wrt", "x", "-o", target]) == 2


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("nothing", "act (a) =>", "'nothing' names 0 functions; the model has my::act, my::layer"),
        ("act", "act (a) =>", "nothing in the main graph calls function my::act"),
    ],
)
def test_errors(name: str, header: str, message: str) -> None:
    given = onnx.parser.parse_model(TEXT.format(opset=21).replace("act (a) =>", header))
    with pytest.raises(InputError, match=message):
        onnxgrad.function_gradient(given, name)


ATTRIBUTES = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
g (float[4,3] x, float[5,3] z) => (float[A,B] y, float[C,D] u) {{ y = my.f {first} (x) u = my.f {second} (z) }}
<domain: "my", opset_import: ["" : 21]> f <{declared}> (x) => (c) {{ {body} }}"""
# declared attributes, those of two calls, the body
OWN = {
    "a slope": ("a", "<a = 0.1>", "<a = 0.3>", "c = LeakyRelu <alpha: float = @a> (x)"),
    "a slope by default": ("a: float = 0.1", "<a = 0.3>", "", "c = Elu <alpha: float = @a> (x)"),
    "an axis": ("a", "<a = 1>", "<a = 0>", "c = Softmax <axis: int = @a> (x)"),
    "a number": ("a", "<a = 0.5>", "<a = 2.0>", "k = Constant <value_float: float = @a> () c = Mul (x, k)"),
    "of one call in the other": ("a, b", "<a = 0.5, b = 1>", "<a = 2.0, b = 0>", "k = LeakyRelu <alpha: float = @a> (x) c = Softmax <axis: int = @b> (k)"),
    "one that no gradient reads": ("a", "<a = 1>", "<a = 0>", "k = Constant <value_int: int = @a> () l = Cast <to = 1> (k) c = Add (x, l)"),
}  # fmt: skip


def with_attributes(declared: str, first: str, second: str, body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        ATTRIBUTES.format(declared=declared, first=first, second=second, body=body)
    )


@pytest.mark.parametrize("case", OWN.values(), ids=OWN)
def test_attributes_become_those_of_the_gradient(case: tuple[str, str, str, str]) -> None:
    given = with_attributes(*case)
    made = onnxgrad.function_gradient(given, "f")
    onnx.checker.check_model(made)
    f, grad = made.functions
    assert list(grad.attribute) == list(f.attribute)
    assert list(grad.attribute_proto) == list(f.attribute_proto)
    given_feeds = {"x": normal(4, 3), "z": normal(5, 3)}
    for call, operand, target in ((0, "x", "y"), (1, "z", "u")):
        calling = onnx.ModelProto()
        calling.CopyFrom(made)
        seed = normal(*given_feeds[operand].shape, seed=7)
        calling.graph.input.append(
            helper.make_tensor_value_info("seed", onnx.TensorProto.FLOAT, seed.shape)
        )
        node = helper.make_node("f_grad", [operand, "seed"], ["found"], domain="my")
        node.attribute.extend(made.graph.node[call].attribute)
        calling.graph.node.append(node)
        calling.graph.output.append(onnx.ValueInfoProto(name="found"))
        calling.graph.output[-1].type.CopyFrom(made.graph.input[call].type)
        found = run(calling, {**given_feeds, "seed": seed})["found"]
        graph = onnxgrad.gradient(given, [operand], target, adjoint="input")
        want = run(graph, {**given_feeds, f"{target}_grad": seed})[f"{operand}_grad"]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (("a", "<a = 1>", "<a = 1>", "s = ReduceSum <keepdims: int = @a> (x) c = Add (x, s)"), "depends on the value of 'a'"),
        (("a", '<a = "tanh">', '<a = "none">', "c = Gelu <approximate: string = @a> (x)"), "'a' is not a number"),
        (("a", "<a = [1, 0]>", "<a = [1, 0]>", "c = Transpose <perm: ints = @a> (x)"), "depends on the value of 'a'"),
        (("a", "<a = 2.0>", "<a = 3.0>", "k = Constant <value_float: float = @a> () c = Pow (x, k)"), "depends on the value of 'a'"),
    ],
)  # fmt: skip
def test_a_gradient_whose_form_depends_on_an_attribute(
    case: tuple[str, str, str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.function_gradient(with_attributes(*case), "f")


def test_the_command_line_proves_one_with_attributes(tmp_path: Path) -> None:
    source, target = str(tmp_path / "m.onnx"), str(tmp_path / "g.onnx")
    onnx.save(with_attributes(*OWN["an axis"]), source)
    assert main(["grad", source, "--function", "f", "-o", target]) == 0
    assert list(onnx.load(target).functions[-1].attribute) == ["a"]
