"""New names of values, nodes and symbols: pairs, patterns, and those that would collide."""

from __future__ import annotations

import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.jobs.surgery.new_names import names_of_nodes, names_of_symbols, names_of_values
from tests.helpers import interface, parse

MODEL = """g (float[batch,seq] x, bool c) => (float[batch,seq] y) <float[1] enc_w = {2}, float[1] enc_b = {1}> {
  enc_h = Mul (x, enc_w)  enc_t = Add (enc_h, enc_b)
  y = If (c) <then_branch = t () => (float[batch,seq] a) { a = Relu (enc_t) },
              else_branch = e () => (float[batch,seq] b) { b = Neg (enc_t) }> }"""


def model() -> onnx.ModelProto:
    made = parse(MODEL)
    inner = [a.g.node[0] for a in made.graph.node[2].attribute]
    for i, node in enumerate([*made.graph.node, *inner]):
        node.name = f"/enc/layer.{i}/{node.op_type}"
    return made


def test_a_pattern_keeps_the_texts_of_its_stars() -> None:
    made = names_of_values(model(), {"enc_*": "encoder.*", "*": "*"})
    assert made == {f"enc_{n}": f"encoder.{n}" for n in "wbht"}
    nodes = names_of_nodes(model().graph, {"/enc/*/*": "*.*"})
    assert nodes["/enc/layer.3/Relu"] == "layer.3.Relu" and len(nodes) == 5
    turned = names_of_nodes(model().graph, {"/enc/layer.*/M*": "m.*.*"})
    assert turned == {"/enc/layer.0/Mul": "m.0.ul"}


def test_a_pair_of_a_name_has_precedence_and_two_may_exchange() -> None:
    made = names_of_values(model(), {"enc_*": "e.*", "enc_w": "scale", "x": "y", "y": "x"})
    assert made == {
        "enc_w": "scale", "enc_b": "e.b", "enc_h": "e.h", "enc_t": "e.t", "x": "y", "y": "x",
    }  # fmt: skip
    assert names_of_symbols(model().graph, {"batch": "seq", "seq": "batch"}) == {
        "batch": "seq", "seq": "batch",
    }  # fmt: skip


def test_every_place_of_a_name_changes() -> None:
    made = onnxgrad.edit(
        model(), rename={"enc_*": "e.*"}, rename_node={"/enc/*": "*"}, rename_dim={"batch": "N"}
    )
    branches = [a.g for a in made.graph.node[2].attribute]
    assert [b.node[0].input[0] for b in branches] == ["e.t", "e.t"]
    assert [b.node[0].name for b in branches] == ["layer.3/Relu", "layer.4/Neg"]
    assert [t.name for t in made.graph.initializer] == ["e.w", "e.b"]
    shaped = [*made.graph.input[:1], *made.graph.output, *branches[0].output]
    dims = [[d.dim_param for d in v.type.tensor_type.shape.dim] for v in shaped]
    assert dims == [["N", "seq"]] * 3 and interface(made) == (["x", "c"], ["y"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rename": {"dec*": "*"}}, r"rename={'dec\*': '\*'}: the main graph has no value 'dec\*'"),
        ({"rename": {"enc_*": "*.*"}}, r"'\*.\*' must have 1 '\*', as 'enc_\*' has"),
        ({"rename": {"enc_*": "*", "x": "w"}}, "the name 'w' is taken by 'x', which gets it too"),
        ({"rename": {"enc_w": "a"}}, "the name 'a' is taken: rename that one too"),
        ({"rename_node": {"Mul": "m"}}, "the model has no node 'Mul'; there are /enc/layer.0/Mul, "),
        ({"rename_node": {"/enc/layer.0/Mul": "/enc/layer.1/Add"}}, "'/enc/layer.1/Add' is taken"),
        ({"rename_dim": {"batches": "N"}}, "the model has no dimension 'batches' .did you mean 'b"),
        ({"rename_dim": {"batch": "seq"}}, "the name 'seq' is taken"),
        ({"rename_dim": {"batch": "4"}}, "a size is no name; fix_dims"),
        ({"rename_dim": {"batch": ""}}, "the new name is empty"),
    ],
)  # fmt: skip
def test_names_that_are_refused(changes: dict[str, dict[str, str]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        onnxgrad.edit(model(), **changes)
