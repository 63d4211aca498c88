"""Files whose nodes are not in order: onnxruntime sorts them, so the reference has to."""

from __future__ import annotations

import onnx

from onnxgrad.ir.protobufs import scheduled
from onnxgrad.verify import verify
from tests.helpers import parse


def names(nodes: list[onnx.NodeProto]) -> str:
    return "".join(node.output[0] for node in nodes)


def test_what_is_in_order_stays() -> None:
    nodes = list(
        parse("g (float[2] x) => (float[2] c) { b = Neg(x) a = Neg(x) c = Add(b, a) }").graph.node
    )
    assert names(scheduled(nodes)) == "bac"
    assert names(scheduled(nodes[::-1])) == "abc"


def test_casts_listed_last_keep_the_float64_leg() -> None:
    """A float16 converter appends its Casts; a nested graph reads one of them too."""
    model = parse("""g (float[N,4] x, bool c) => (float[N,4] y) {
      a = Tanh(h) b = If(c) <then_branch = t () => (float16[N,4] p) { p = Neg(h) },
                             else_branch = e () => (float16[N,4] q) { q = Add(a, h) }>
      y = Cast<to = 1>(b) h = Cast<to = 10>(x) }""")
    report = verify(model, model)
    assert report.ok and report.checks["float64"].ran and not report.gaps
    assert not verify(
        model,
        parse("""g (float[N,4] x, bool c) => (float[N,4] y) {
      b = If(c) <then_branch = t () => (float16[N,4] p) { p = Neg(h) },
                 else_branch = e () => (float16[N,4] q) { q = Add(h, h) }>
      y = Cast<to = 1>(b) h = Cast<to = 10>(x) }"""),
    )


def test_a_cycle_comes_last() -> None:
    nodes = list(
        parse("g (float[2] x) => (float[2] c) { a = Add(b, x) b = Neg(a) c = Neg(x) }").graph.node
    )
    assert names(scheduled(nodes)) == "cab"
