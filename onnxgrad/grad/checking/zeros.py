"""Exact zeros among generated feeds, only at factors of products. A rule that divides, or counts
zeros, may be wrong at a zero although it is right everywhere around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import elements, graphs_of
from onnxgrad.ir.storage.shared_weights import IN_MEMORY, Files

_MOVES = {*domains.VIEWS, "Transpose"}
_ROUGH = ("Acosh", "Log", "Reciprocal", "Softsign", "Sqrt")  # not twice differentiable at 0
# smooth at 0, so that a product of 0 meets neither a kink nor a pole after it
_SMOOTH = {
    *domains.MOVES, *(op for op in domains.SMOOTH if op not in _ROUGH), "Add", "Concat", "Conv",
    "CumProd", "CumSum", "Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Mean", "Mul",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "ScatterElements", "ScatterND", "Softmax", "Sub", "Sum",
}  # fmt: skip
_SHARE = 0.25


class _Flow:
    """The readers and the definition of each value of the main graph."""

    def __init__(self, graph: GraphProto, files: Files) -> None:
        self.files = files
        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self.makers: dict[str, NodeProto] = {}
        self.constants = {t.name: t for t in graph.initializer}
        self.nested = {
            name
            for node in graph.node
            for inner in graphs_of(node)
            for n in inner.node
            for name in n.input
        }
        for node in graph.node:
            for index, name in enumerate(node.input):
                self.readers[name].append((node, index))
            self.makers.update(dict.fromkeys(node.output, node))

    def factor(self, name: str) -> bool:
        """Whether a value is only read as a factor of products whose results pass only through
        operators that are smooth at 0.
        """
        found = False
        for node, index in self.readers[name]:
            if _operator(node) in _MOVES and index == 0:
                if not self.factor(node.output[0]):
                    return False
            elif not (self._product(node, index) and all(map(self._smooth, node.output))):
                return False
            found = True
        return found and name not in self.nested

    def _product(self, node: NodeProto, index: int) -> bool:
        test = _PRODUCTS.get(_operator(node))
        return test is not None and test(self, node, index)

    def _smooth(self, name: str) -> bool:
        todo, seen = [name], set()
        while todo:
            one = todo.pop()
            for node, index in self.readers[one]:
                power = _operator(node) == "Pow" and _power(self, node, index)
                if not power and _operator(node) not in _SMOOTH:
                    return False
                todo += [o for o in node.output if o not in seen]
                seen.update(node.output)
        return not seen & self.nested and name not in self.nested

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The elements of an initializer or a Constant."""
        if name in self.constants:
            return self.files.elements(self.constants[name])
        made = self.makers.get(name)
        if made is None or _operator(made) != "Constant" or len(made.attribute) != 1:
            return None
        value = helper.get_attribute_value(made.attribute[0])
        return elements(value) if isinstance(value, TensorProto) else np.asarray(value)


def _operator(node: NodeProto) -> str:
    return node.op_type if domains.is_default(node.domain) else ""


def _chain(flow: _Flow, node: NodeProto, index: int) -> bool:
    """Whether a Mul is next to another Mul, or multiplies a value by itself."""
    makers = [flow.makers.get(name) for name in node.input]
    before = any(m is not None and _operator(m) == "Mul" for m in makers)
    after = any(_operator(n) == "Mul" for n, _ in flow.readers[node.output[0]])
    return before or after or node.input[0] == node.input[1]


def _power(flow: _Flow, node: NodeProto, index: int) -> bool:
    """Whether the operand is an exponent, or a base whose exponents are 0, 1, 2, ..."""
    exponent = flow.constant(node.input[1])
    whole = exponent is not None and bool(((exponent >= 0) & (exponent % 1 == 0)).all())
    return index == 1 or whole


def _multiplies(flow: _Flow, node: NodeProto, index: int) -> bool:
    """Whether the operand is the data or the updates of a scatter that multiplies."""
    return index in (0, 2) and any(a.name == "reduction" and a.s == b"mul" for a in node.attribute)


_PRODUCTS: dict[str, Callable[[_Flow, NodeProto, int], bool]] = {
    "ReduceProd": lambda flow, node, index: index == 0,
    "CumProd": lambda flow, node, index: index == 0,
    "Mul": _chain,
    "Pow": _power,
    "ScatterElements": _multiplies,
    "ScatterND": _multiplies,
}


def feeds_with_zeros(
    model: ModelProto, feeds: Mapping[str, Any], seed: int, files: Files = IN_MEMORY
) -> list[dict[str, Any]]:
    """Returns the feeds with one zero in each factor, and with zeros at a quarter of its elements;
    an empty list if no input is a factor.
    """
    flow = _Flow(model.graph, files)
    factors = [
        name
        for name, value in feeds.items()
        if isinstance(value, np.ndarray) and value.size and _is_float(value) and flow.factor(name)
    ]
    rng = np.random.default_rng([seed, len(feeds)])
    made = []
    for share in (0.0, _SHARE) if any(feeds[n].size > 1 for n in factors) else (0.0,):
        zeroed = dict(feeds)
        for name in factors:
            value = feeds[name]
            zeros: np.ndarray[Any, Any] = np.asarray(rng.random(value.shape) < share)
            zeros.flat[rng.integers(value.size)] = True
            zeroed[name] = np.where(zeros, np.zeros((), value.dtype), value)
        made.append(zeroed)
    return made if factors else []


def _is_float(value: np.ndarray[Any, Any]) -> bool:
    return value.dtype.kind == "f" or "float" in value.dtype.name
