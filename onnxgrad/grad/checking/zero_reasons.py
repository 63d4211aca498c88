"""Why a value that is connected with a target does not move it.

The value moves a little, and the nodes at which the change ends are looked at: an operator whose
gradient is zero, a unit that is idle, a factor of 0, terms that cancel. If one of them is none of
these, such as a function that is saturated, the zero explains nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxgrad.errors import OnnxgradError
from onnxgrad.grad.checking.looks import Checked
from onnxgrad.grad.checking.report import HIDDEN, ValueCheck
from onnxgrad.grad.checking.vectors import flat, shaped
from onnxgrad.grad.registry import rule_for
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import copy_of, every_node, graphs_of
from onnxgrad.ir.storage.shared_weights import Files
from onnxgrad.verify.reference.client import Float64

_STEP = 1e-5
_MOST_EXPLAINED = 16  # values, each of which takes a run of the model
# operators that choose among values, so that some of them do not matter
_CHOOSES = {
    *(op for op in domains.KINKED if op != "Abs"), "GlobalMaxPool", "Max", "MaxPool", "Min",
    "PRelu", "ReduceMax", "ReduceMin", "TopK", "Where",
}  # fmt: skip
_LEAVES_OUT = {
    "Compress", "Gather", "GatherElements", "GatherND", "Pad", "Resize", "ScatterElements",
    "ScatterND", "SequenceAt", "Slice", "Split", "Trilu",
}  # fmt: skip
_SUMS = {"Add", "Sub", "Sum", "Mean", "Div"}
_PRODUCTS = {
    "Conv", "ConvTranspose", "CumProd", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Pow",
    "ReduceProd", "Where",
}  # fmt: skip


def explained(
    check: Checked,
    checks: Sequence[ValueCheck],
    feeds: Mapping[str, Any],
    reaching: Collection[str],
    seed: int,
) -> list[ValueCheck]:
    """Returns the checks, those of zeros with the operators that explain them. Without these they
    are not judged.
    """
    zeros, probe = [c.name for c in checks if c.zero and c.name in reaching], check.probe
    if not zeros or len(zeros) > _MOST_EXPLAINED:
        return list(checks)
    try:
        ends = _Stillness(probe.model, check.files, check.still(feeds), [*probe.outputs.values()])
        why = {n: ends.reason(probe.deltas[n], seed) for n in zeros}
    except OnnxgradError:
        return list(checks)
    return [
        replace(c, judged=bool(why[c.name]), why=why[c.name] or HIDDEN) if c.name in why else c
        for c in checks
    ]


class _Stillness:
    """The values of a model, and those that change when one of its inputs moves.

    model: a probe. feeds: its feeds with nothing moved. targets: the values that stay the same.
    """

    def __init__(
        self, model: ModelProto, files: Files, feeds: Mapping[str, Any], targets: Collection[str]
    ) -> None:
        self.graph, self.files, self.feeds = model.graph, files, feeds
        shown = copy_of(model)
        del shown.graph.output[:]
        self.names = [name for node in self.graph.node for name in node.output if name]
        shown.graph.output.extend(ValueInfoProto(name=n) for n in self.names)
        self.reference = Float64(files.runnable(shown))
        self.before = self.reference.run(feeds, outputs=self.names)
        self.constants = {t.name: t for t in self.graph.initializer}
        self.needed = set(targets)
        for node in reversed(self.graph.node):
            if self.needed.intersection(node.output):
                self.needed.update(_read(node))

    def reason(self, delta: str, seed: int) -> str:
        """Returns the nodes at which the change of `delta` ends; empty if one does not explain
        it.
        """
        like = self.feeds[delta]
        moved = np.random.default_rng(seed).standard_normal(
            np.shape(flat(like)) or self._shape(delta)
        )
        after = self.reference.run(
            {**self.feeds, delta: shaped(_STEP * moved, like)}, outputs=self.names
        )
        changed = {delta, *(n for n in self.names if not _same(self.before[n], after[n]))}
        words: dict[str, None] = {}
        for node in self.graph.node:
            if changed.isdisjoint(_read(node)) or not changed.isdisjoint(node.output):
                continue
            if not self.needed.isdisjoint(node.output):
                why = self._why(node, changed)
                if not why:
                    return ""
                words[f"{why} '{node.output[0]}'"] = None
        return ", ".join(words)

    def _shape(self, delta: str) -> tuple[int, ...]:
        """The shape of the value to which a delta is added."""
        node = next(n for n in self.graph.node if delta in n.input)
        return np.asarray(self.before[node.output[0]]).shape

    def _why(self, node: NodeProto, changed: Collection[str]) -> str:
        op, rule = node.op_type, rule_for(domains.canonical(node.domain), node.op_type)
        values = [self.before.get(name) for name in node.output if name]
        if (rule is not None and rule.kind == "zero") or not any(map(_is_float, values)):
            return f"{op} has no gradient:"
        if not domains.is_default(node.domain):
            return ""
        if op == "If":
            return "a branch that is not taken:"
        if op in _CHOOSES:
            return f"an idle {op}"
        if op in _LEAVES_OUT:
            return f"left out by {op}"
        count = sum(name in changed for name in node.input)
        if op in _SUMS and count > 1:
            return f"terms cancel in {op}"
        others = node.input if count > 1 or len(node.input) == 1 else [
            name for name in node.input if name not in changed
        ]  # fmt: skip
        if op in _PRODUCTS and any(self._has_zero(name) for name in others):
            return f"a factor of 0 in {op}"
        return ""

    def _has_zero(self, name: str) -> bool:
        value = self.before.get(name, self.feeds.get(name))
        if value is None and name in self.constants:
            value = self.files.elements(self.constants[name])
        return isinstance(value, np.ndarray) and bool((value == 0).any())


def _read(node: NodeProto) -> Iterator[str]:
    """Yields the names that a node and its nested graphs read."""
    yield from node.input
    for graph in graphs_of(node):
        yield from (name for inner in every_node(graph.node) for name in inner.input)
        yield from (value.name for value in graph.output)


def _is_float(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or np.array_equal(np.asarray(a), np.asarray(b), equal_nan=_is_float(a))
