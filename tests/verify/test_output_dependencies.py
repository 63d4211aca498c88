"""What each output is computed from."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.verify.output_dependencies import float_types, new_weights, roundings
from onnxgrad.verify.proof_model import ProofModel, proof_model
from tests.helpers import parse


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("g (float[2] x) => (float[2] y) { y = Neg(x) }", {"float32"}),
        ("g (int64[2] x) => (int64[2] y) { y = Neg(x) }", set()),
        (
            "g (float[2] x) => (float[2] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
            {"float32", "float16"},
        ),
        # beside the output's paths
        (
            "g (float[2] x, float16[2] z) => (float[2] y, float16[2] w) { y = Neg(x) w = Neg(z) }",
            {"float32"},
        ),
        (
            "g (float[2] x) => (double[2] y) <double[1] w = {2}> "
            "{ c = Cast <to = 11> (x) y = Mul(c, w) }",
            {"float32", "float64"},
        ),
        # a stored type is no type of computing
        (
            "g (float[2] x) => (float[2] y) <bfloat16[2] w = {1, 2}> "
            "{ c = Cast <to = 1> (w) y = Mul(x, c) }",
            {"float32"},
        ),
        (
            "g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a)"
            " { h = Cast <to = 16> (x) a = Cast <to = 1> (h) }, else_branch = e () => (float[2] b)"
            " { b = Neg(x) }> }",
            {"float32", "bfloat16"},
        ),
    ],
)
def test_float_types_on_the_paths(text: str, types: set[str]) -> None:
    assert float_types(parse(text))["y"] == types


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
g (float[2] x) => (float[2] y, float[2] z) { y = f.half(x) z = Neg(x) }
<domain: "f", opset_import: ["" : 20]> half (a) => (b) { h = Cast <to = 10> (a) b = Cast <to = 1> (h) }"""


def test_of_a_call_they_are_the_functions() -> None:
    found = float_types(onnx.parser.parse_model(FUNCTION))
    assert found == {"y": {"float32", "float16"}, "z": {"float32"}}


def test_new_weights_count_for_the_outputs_that_they_reach() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z, float[2] n) <float[2] w = {%s}> {
        y = Mul(x, w) z = Neg(x) n = Add(x, x) }"""
    a, b = parse(text % "2, 3"), parse(text % "2, 3.5")
    assert new_weights(proof_model(a), proof_model(b)) == {
        "y": {TensorProto.FLOAT},
        "z": set(),
        "n": set(),
    }
    assert not any(new_weights(proof_model(a), proof_model(a)).values())


@pytest.mark.parametrize("nested", [False, True])
def test_new_weights_in_constants_of_nodes(nested: bool) -> None:
    one = "c = Constant <value = float[2] {%s}> () y = Mul(x, c)"
    if nested:
        one = """y = If (p) <then_branch = t () => (float[2] a) { c = Constant <value = float[2] {%s}> ()
            a = Mul(x, c) }, else_branch = e () => (float[2] b) { b = Neg(x) }>"""
    text = f"g (float[2] x, bool p) => (float[2] y, float[2] z) {{ {one} z = Neg(x) }}"
    a, b = parse(text % "2, 3"), parse(text % "2, 3.5")
    assert new_weights(proof_model(a), proof_model(b)) == {"y": {TensorProto.FLOAT}, "z": set()}


def _floats(model: ModelProto, **arrays: list[float]) -> ModelProto:
    for name, values in arrays.items():
        tensor = numpy_helper.from_array(np.float32(values), name)
        model.graph.initializer.append(tensor)
    return model


@pytest.mark.parametrize(
    ("values", "new"),
    [
        ([2.0, 3.0, 5.0], False),  # split and merged
        ([0.0, 1.0, 2.0], False),
        ([2.0, 6.0, 5.0], True),
        ([np.nan, np.inf, np.nan], False),
    ],
)
def test_the_weights_of_files_are_read_one_by_one(
    tmp_path: Path, values: list[float], new: bool
) -> None:
    text = "g (float[3] x) => (float[3] y) { a = Mul (x, v) b = Add (a, w) y = Sub (b, u) }"
    a = _floats(parse(text), u=[9, 9, 9], v=[3, 2, 7], w=[5, -1, 0])
    b = _floats(parse(text), u=[9, 9, 9], v=values, w=[5, -1, 0])
    found = []
    for name, model in (("a", a), ("b", b)):
        kept = copy.deepcopy(model)
        onnx.save(
            model,
            tmp_path / name,
            save_as_external_data=True,
            size_threshold=0,
            location=f"{name}.data",
        )
        made = proof_model(tmp_path / name)
        found.append(ProofModel(made.source, made.proto, lambda: pytest.fail("all are read")))
        assert [made.read(t).raw_data for t in made.proto.graph.initializer] == [
            t.raw_data for t in kept.graph.initializer
        ]
    assert new_weights(*found) == ({"y": {TensorProto.FLOAT}} if new else {})
    (tmp_path / "b.data").unlink()
    with pytest.raises(InputError, match="external data of initializer 'u' cannot be read"):
        new_weights(*found)


@pytest.mark.parametrize("read", [True, False])
def test_an_old_weight_that_nothing_reads_is_no_sign_that_none_was_folded(read: bool) -> None:
    last = ", z" if read else ""
    outputs = "float[2] y" + (", float[2] z" if read else "")
    a = parse("g (float[2] x) => (OUT) <float s = {0.3}> { m = Mul (x, s) y = Mul (m, s) z = Mul (x, s) }".replace("OUT", outputs))  # fmt: skip
    b = parse("g (float[2] x) => (OUT) <float s = {0.3}, float t = {0.09}> { y = Mul (x, t) z = Mul (x, s) }".replace("OUT", outputs))  # fmt: skip
    found = new_weights(proof_model(a), proof_model(b))
    assert bool(found.get("y")) is not read, last


def test_roundings_are_the_constants_of_one_side_with_many_digits() -> None:
    a = parse("g (float[2] x) => (float[2] y) <float s = {0.3}, float h = {0.5}, float16 k = {11878}> { m = Mul (x, s) n = Mul (m, h) c = Cast <to = 1> (k) y = Mul (n, c) }")  # fmt: skip
    b = parse("g (float[2] x) => (float[2] y) <float s = {-0.3}, float u = {0.7}> { m = Mul (x, s) y = LeakyRelu <alpha = 0.3> (m) }")  # fmt: skip
    first, second = roundings(proof_model(a), proof_model(b))
    half = float(np.float16(0.1))
    assert dict(zip(first.values, first.units)) == {half: 2.0**-11}
    assert dict(zip(second.values, second.units)) == {float(np.float32(0.3)): 2.0**-24}
    assert not any(roundings(proof_model(a), proof_model(a)))


COMPUTED = """g (float[N,7] x) => (float[N,7] y) {
  n = Shape <start = -1> (x) f = Cast <to = 1> (n) r = Sqrt (f) o = Constant <value_floats = [1.0]> ()
  s = Div (o, r) t = Sqrt (s) a = Mul (x, t) y = Mul (a, t) }"""


def test_roundings_on_the_way_to_a_folded_constant() -> None:
    """Each operator of the chain rounded its result; one that both models have rounds alike."""
    folded = "g (float[N,7] x) => (float[N,7] y) <float s = {0.37796447}> { y = Mul (x, s) }"
    first, second = roundings(proof_model(parse(COMPUTED)), proof_model(parse(folded)))
    assert first.results == dict.fromkeys("rst", 2.0**-24) and not second.results
    partly = COMPUTED.replace("t = Sqrt (s) a", "t = Constant <value_floats = [0.61478815]> () a")
    first, second = roundings(proof_model(parse(COMPUTED)), proof_model(parse(partly)))
    assert first.results == {"t": 2.0**-24} and not second.results
    first, second = roundings(
        proof_model(parse(COMPUTED)), proof_model(parse(COMPUTED.replace("y = Mul", "y = Add")))
    )
    assert not first and not second


def test_roundings_of_many_constants_are_the_difference_of_two_sets() -> None:
    rng = np.random.default_rng(0)
    common, first, second = (rng.normal(size=n).astype(np.float32) for n in (50, 300, 200))
    models = []
    for own in (first, second):
        values = np.concatenate([own, -own[:20], common, [np.nan, np.inf, 0.5]]).astype(np.float32)
        model = parse("g (float[N] x) => (float[N] y) { m = ReduceSum (w) y = Mul (x, m) }")
        model.graph.initializer.append(numpy_helper.from_array(rng.permutation(values), "w"))
        models.append(proof_model(model))
    for found, own in zip(roundings(*models), (first, second), strict=True):
        assert found.values.dtype == np.float64 and {*found.units} == {2.0**-24}
        assert found.values.tolist() == sorted({*np.abs(own).astype(np.float64).tolist()})
