"""Loading and saving is the identity on the protobuf, also when every block and binding is written anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from scripts.fetch_models import NAMES
from tests.backend_suite import usable
from tests.helpers import MODELS_DIR, parse

MODELS = sorted(MODELS_DIR.rglob("*.onnx"))


def difference(proto: onnx.ModelProto) -> str:
    """Where the round trip of `proto` differs from it: untouched, or with everything written anew; '' if nowhere."""
    before = proto.SerializeToString(deterministic=True)
    program = load(proto)
    if to_proto(program) != proto:
        return "untouched"
    for block in program.blocks():
        block.check()
        block.changed = True
        for binding in block.bindings:
            binding.changed = True
    if to_proto(program) != proto:
        return "written anew"
    return "" if proto.SerializeToString(deterministic=True) == before else "the argument"


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_cases_of_the_backend_suite(step: int) -> None:
    found = {c.name: d for c in list(usable())[::step] if (d := difference(c.model))}
    assert found == {}


@pytest.mark.parametrize(
    "path", MODELS, ids=lambda p: str(p.relative_to(MODELS_DIR).with_suffix(""))
)
def test_committed_models(path: Path) -> None:
    assert difference(onnx.load(path)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fetched_models(name: str, fetched: Callable[[str], Path]) -> None:
    assert difference(onnx.load(fetched(name))) == ""


def test_a_changed_body_of_a_sequence_map_has_dtypes() -> None:
    """onnxruntime infers the one that torch writes for `hstack`, an If, and not what is left of it."""
    model = parse("""g (float[2,3] x, int64 i) => (float[2,3] y) {
      s = SequenceConstruct (x, x)
      t = SequenceMap (s) <body = b (e) => (f) {
        n = Shape (e) r = Size (n) z = Constant <value = int64 {0}> () k = CastLike (z, r) c = Equal (r, k)
        f = If (c) <then_branch = t () => (p) { o = Constant <value_ints = [1]> () p = Reshape (e, o) },
                    else_branch = u () => (q) { q = Identity (e) }> }>
      y = SequenceAt (t, i) }""")
    made = onnxgrad.optimize(model)
    (mapped,) = (n for n in made.graph.node if n.op_type == "SequenceMap")
    assert [n.op_type for n in mapped.attribute[0].g.node] == ["Identity"]
