"""Runs of lookups alone: both models' tables are read at every row, where the runs of a proof read
few. If each row is the same in both models, the proof is that of two models with one table, whose
rows no run has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node
from onnx.numpy_helper import from_array

from onnxgrad.errors import OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import reads, scheduled
from onnxgrad.limits import LimitReached
from onnxgrad.verify.coverage.counters import Array
from onnxgrad.verify.coverage.targets import axis_of
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.tolerance import is_float, rounded
from onnxgrad.verify.values import Value

# operators between a table and its lookup, and between the lookup and the value that is compared
_BEFORE = {
    "Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
_AFTER = {"Cast", "DequantizeLinear", "Identity"}
_MOST = 1 << 25  # elements of the constants of one lookup
_ROWS = "rows of the lookup"

# runs a model, and returns its outputs by name
Runs: TypeAlias = "Callable[[ModelProto], Mapping[str, Value]]"
Place: TypeAlias = "tuple[str, str, int]"  # domain, operator, operand


@frozen
class Lookup:
    """One Gather from a constant. `nodes`: those that compute its table, the Gather and those that
    convert its result, in order. `constants`: the initializers that they read. `result`: the name
    of the value that is compared. `readers`: what reads it.
    """

    nodes: Sequence[NodeProto]
    constants: Sequence[str]
    gather: NodeProto
    result: str
    readers: Sequence[Place]

    @property
    def after(self) -> Sequence[NodeProto]:
        """The Gather and the nodes behind it."""
        return self.nodes[self.nodes.index(self.gather) :]

    def alone(self, model: ProofModel, tensors: Sequence[TensorProto]) -> ModelProto:
        """Returns the model that looks up every row, in order."""
        table, axis = self.gather.input[0], axis_of(self.gather)
        at = self.nodes.index(self.gather)
        gather = NodeProto()
        gather.CopyFrom(self.gather)
        gather.input[1] = _ROWS
        count = [
            make_node("Shape", [table], [f"{_ROWS}: shape"]),
            make_node("Gather", [f"{_ROWS}: shape", f"{_ROWS}: axis"], [f"{_ROWS}: count"]),
            make_node("Range", [f"{_ROWS}: 0", f"{_ROWS}: count", f"{_ROWS}: 1"], [_ROWS]),
        ]
        nodes = [*self.nodes[:at], *count, gather, *self.nodes[at + 1 :]]
        numbers = {"0": 0, "1": 1, "axis": axis}
        constants = [
            *(model.read(tensor) for tensor in tensors),
            *(from_array(np.asarray(n, np.int64), f"{_ROWS}: {k}") for k, n in numbers.items()),
        ]
        graph = make_graph(nodes, "lookup", [], [ValueInfoProto(name=self.result)], constants)
        proto = model.proto
        return make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)


class Lookups:
    """The lookups of a model from its constants."""

    def __init__(self, model: ProofModel) -> None:
        self.model = model
        graph = model.proto.graph
        given = {v.name for v in graph.input}  # a caller may override them
        self._constants = {t.name: t for t in graph.initializer if t.name not in given}
        self._outputs = {v.name for v in graph.output}

    @cached_property
    def _makers(self) -> dict[str, NodeProto]:
        return {name: n for n in self.model.proto.graph.node for name in n.output if name}

    @cached_property
    def _readers(self) -> dict[str, list[NodeProto]]:
        found: dict[str, list[NodeProto]] = {}
        for node in self.model.proto.graph.node:
            for name in dict.fromkeys(reads(node)):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def _all(self) -> list[Lookup]:
        nodes = self.model.proto.graph.node
        found = (self._lookup(node) for node in nodes if _is(node, {"Gather"}))
        return [lookup for lookup in found if lookup is not None]

    def _lookup(self, gather: NodeProto) -> Lookup | None:
        behind = self._behind(gather.input[0])
        if behind is None or self._behind(gather.input[1]) is not None:
            return None
        nodes, constants = behind
        result, last = gather.output[0], [gather]
        while True:
            readers = self._readers.get(result, [])
            if len(readers) != 1 or result in self._outputs or not _is(readers[0], _AFTER):
                break
            node = readers[0]
            others = [name for name in node.input[1:] if name]
            # of one element: an axis would count from the rank of the indices
            if node.input[0] != result or any(self._width(name) != 1 for name in others):
                break
            constants += others
            last.append(node)
            result = node.output[0]
        places = [
            (domains.canonical(node.domain), node.op_type, i)
            for node in self._readers.get(result, [])
            for i, name in enumerate(reads(node))
            if name == result
        ]
        places += [("", "output", 0)] * (result in self._outputs)
        return Lookup([*nodes, *last], list(dict.fromkeys(constants)), gather, result, places)

    def _width(self, name: str) -> int:
        """Returns the number of elements of an initializer, 0 of any other value."""
        return int(np.prod(self._constants[name].dims)) if name in self._constants else 0

    def _behind(self, value: str) -> tuple[list[NodeProto], list[str]] | None:
        """Returns the nodes that compute a constant, in order, and the initializers that they read;
        None if other values or operators are among them.
        """
        nodes: dict[str, NodeProto] = {}
        constants, todo = dict[str, None](), [value]
        while todo:
            name = todo.pop()
            maker = self._makers.get(name)
            if name in self._constants:
                constants[name] = None
            elif maker is None or not _is(maker, _BEFORE):
                return None
            elif name not in nodes:
                nodes[name] = maker
                todo += [n for n in maker.input if n]
        return scheduled(list(nodes.values())), list(constants)

    def only(self, constant: str) -> list[Lookup]:
        """Returns the lookups that read a constant; none if anything else reads it, too."""
        mine = [lookup for lookup in self._all if constant in lookup.constants]
        inside = {id(node) for lookup in mine for node in lookup.nodes}
        ends = {id(node) for lookup in mine for node in lookup.after}
        todo = [constant]
        while todo:
            name = todo.pop()
            readers = self._readers.get(name, [])
            if name in self._outputs or not {id(node) for node in readers} <= inside:
                return []
            todo += [out for n in readers if id(n) not in ends for out in n.output]
        return mine

    def types(self, lookups: Sequence[Lookup]) -> set[int]:
        """Returns the types of the constants that these lookups read."""
        return {self._constants[name].data_type for x in lookups for name in x.constants}

    def rows(self, lookup: Lookup, run: Runs) -> Array | None:
        """Returns the result of a lookup of every row, along the first axis; None if it is too
        large, or does not run.
        """
        tensors = [self._constants[name] for name in lookup.constants]
        if sum(int(np.prod(t.dims)) for t in tensors) > _MOST:
            return None
        try:
            found = run(lookup.alone(self.model, tensors))[lookup.result]
        except LimitReached:
            raise
        except OnnxgradError:
            return None
        if not isinstance(found, np.ndarray) or not found.ndim:
            return None
        return np.moveaxis(found, axis_of(lookup.gather), 0)


def _is(node: NodeProto, operators: set[str]) -> bool:
    return domains.canonical(node.domain) == "" and node.op_type in operators


def same_lookups(
    ours: Lookups, theirs: Lookups, pairs: Mapping[str, str], runs: Sequence[Runs]
) -> Iterator[str]:
    """Yields the constants of which all that one model reads is what the other reads, by running
    the lookups alone. `pairs`: the names of these constants in both models. `runs`: each way of
    running a model.
    """
    known: dict[tuple[str, ...], bool] = {}
    for name, other in pairs.items():
        first, second = ours.only(name), theirs.only(other)
        key = (*(x.result for x in first), "", *(x.result for x in second))
        if key not in known:
            types = ours.types(first) | theirs.types(second)
            rows = [
                *(partial(ours.rows, x) for x in first),
                *(partial(theirs.rows, x) for x in second),
            ]
            known[key] = bool(first) and _readers(first) == _readers(second)
            known[key] = known[key] and all(_agree(rows, run, types) for run in runs)
        if known[key]:
            yield name


def _readers(lookups: Sequence[Lookup]) -> list[Place]:
    return sorted(place for lookup in lookups for place in lookup.readers)


def _agree(lookups: Sequence[Callable[[Runs], Array | None]], run: Runs, types: set[int]) -> bool:
    """Returns whether all lookups have the same rows."""
    usual: Array | None = None
    for lookup in lookups:
        found = lookup(run)
        if found is None or (usual is not None and not equal_rows(usual, found, types)):
            return False
        usual = found if usual is None else usual
    return True


def equal_rows(a: Array, b: Array, types: set[int]) -> bool:
    """Returns whether two tables have the same elements: floats within the tolerance of rounded
    weights of these `types`, each relative to the largest value of its row or, if that is smaller,
    of its column, because runs may read this row alone.
    """
    if a.shape != b.shape or a.dtype != b.dtype or not a.size:
        return False
    if not is_float(a):
        return bool(np.array_equal(a, b))
    x, y = (t.astype(np.float64).reshape(len(t), -1) for t in (a, b))
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)):
        return False
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    sizes = np.where(finite, np.abs(x), 0.0)
    scale = np.minimum(sizes.max(axis=1, keepdims=True), sizes.max(axis=0, keepdims=True))
    with np.errstate(invalid="ignore"):
        off = np.abs(x - y)
    return bool(np.all((off <= rounded(types) * scale) | ~finite))
