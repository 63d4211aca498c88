"""What became of each node, and the rewrites that did it."""

from __future__ import annotations

import onnxgrad
from tests.helpers import parse
from tests.report.html.common import section_of

MODEL = """g (float[2,3] x) => (float[2,3] y) {
    a = Identity (x)  b = Transpose <perm = [1, 0]> (a)  c = Transpose <perm = [1, 0]> (b)  d = Relu (c)  y = Neg (d) }"""


def test_removed_and_changed_nodes_know_their_rewrites() -> None:
    done = onnxgrad.optimize(parse(MODEL), report=True, verify=False)
    found = section_of(done.to_html(), "graph")
    before, after = found["graphs"]
    became = {n["o"]: n.get("c") for n in before["nodes"]}
    assert became == {"Identity": "removed", "Transpose": "removed", "Relu": "changed", "Neg": None}
    assert {n["o"]: n.get("c") for n in after["nodes"]} == {"Relu": "changed", "Neg": None}
    identity = before["nodes"][0]
    law, where, proof = found["rewrites"][identity["w"][0] - 1]
    assert found["laws"][law] == ["identity", "remove-noops", "Identity(x) = x"]
    assert where == "a: f32[2,3] = Identity(x)"
    assert proof == "" and found["whole"] == ""  # nothing was proved


def test_new_nodes_know_the_rewrite_that_emitted_them() -> None:
    done = onnxgrad.optimize("models/mobilenet_v2.raw.onnx", report=True, verify=False)
    found = section_of(done.to_html(), "graph")
    new = [n for n in found["graphs"][1]["nodes"] if n.get("c") == "added"]
    assert new and all("w" in n for n in new)
    gone = [n for n in found["graphs"][0]["nodes"] if n["o"] == "BatchNormalization"]
    laws = {found["laws"][found["rewrites"][w - 1][0]][2] for n in gone for w in n["w"]}
    assert laws == {"BN(x) = x * scale + shift, where x is a product that can take them"}


def test_each_rewrite_says_its_own_proof() -> None:
    done = onnxgrad.optimize(parse(MODEL), report=True, verify="each", seeds=[0])
    found = section_of(done.to_html(), "graph")
    proofs = {proof for _, _, proof in found["rewrites"]}
    assert proofs == {"equal on its own operands"}
    assert found["whole"] == "with the whole model: equal on cpu"
