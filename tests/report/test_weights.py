"""onnxgrad/report/weights.py: the table of weights, those of nested graphs too."""

from onnxgrad.report.weights import weights
from tests.helpers import parse

BRANCHES = """g (float[2,3] x, bool c) => (float[2,3] y) {
  y = If (c) <then_branch = t () => (float[2,3] p) <float[3,3] w = {1,2,3,4,5,6,7,8,9}> { p = MatMul (x, w) },
              else_branch = e () => (float[2,3] q) <float[3] shift = {0,0,0}> { q = Sub (x, shift) }> }"""


def test_nested_weights_are_listed_and_the_model_is_left_alone() -> None:
    model = parse(BRANCHES)
    before = model.SerializeToString()
    found = weights(model)
    assert [(v.name, v.type, v.is_weight, v.why) for v in found.values] == [
        ("w", "f32[3,3]", True, "matrix of a product"),
        ("shift", "f32[3]", False, "a table that nobody trained: all 0"),
    ]
    assert model.SerializeToString() == before
    assert found.to_dict()["left_out"] == [
        {"name": "shift", "type": "f32[3]", "why": found.values[1].why}
    ]


def test_without_v_the_first_of_each_reason() -> None:
    text = "".join(f" a{i + 1} = MatMul (a{i}, w{i})" for i in range(40))
    given = ", ".join(f"float[1,1] w{i} = {{{i}.5}}" for i in range(40))
    found = weights(parse(f"g (float[1,1] a0) => (float[1,1] a40) <{given}> {{{text} }}"))
    assert "weight (40)" in str(found) and "and 10 more (-v)" in str(found)
    assert "left out" not in str(found)
