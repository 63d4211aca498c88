"""Weights as the lock records them: one line of at most 100 bytes for each constant tensor of a
model, and the differences between two records.

    "fc.weight": "f32[10,64] 9f86d081884c norm=4.53127 min=-0.32 max=0.31 zeros=2"
    "threshold": "f32[1] 5891b5b522d5 = 0.3"
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.protobufs import elements, graphs_of, tensor_of
from onnxgrad.ir.storage.external_data import internalize, is_halved, pieces
from onnxgrad.ir.types import Array, dtype_name
from onnxgrad.wording import counted

Bools: TypeAlias = npt.NDArray[np.bool_]

MOST_LINES = 1000  # models with more tensors have one line for each group
MOST_BYTES = 100  # of a line
_VALUES = 8  # a tensor with up to this many elements shows them
_DIGEST = 6  # bytes
_ROW = 1 << 26  # longer rows are not looked at
_PLAIN: dict[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.DOUBLE: "<f8",
    TensorProto.FLOAT16: "<f2",
    TensorProto.INT8: "i1",
    TensorProto.UINT8: "u1",
    TensorProto.INT32: "<i4",
    TensorProto.INT64: "<i8",
}
_FLOATS = ("f", "bf", "c")  # how names of float types begin


@frozen
class Weight:
    """One constant tensor, or a group of `count` tensors (then `kind` is empty). `values`: its
    elements as text, if there are few. `bad`: the number of NaN and infinite values. `zero_rows`:
    the number of slices along the first and the last axis that are all zero.
    """

    kind: str
    digest: str
    norm: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bad: int = 0
    zero_rows: int = 0
    values: str = ""
    count: int = 1

    def __str__(self) -> str:
        begin = f"{self.kind or counted(self.count, 'weight')} {self.digest}"
        if self.values and len(text := f"{begin} = {self.values}") <= MOST_BYTES:
            return text
        found = [("nan", self.bad), ("zeros", self.zero_rows)]
        more = "".join(f" {name}={count}" for name, count in found if count)
        return f"{begin} norm={self.norm:.6g} min={self.low:.3g} max={self.high:.3g}{more}"

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers; true of a group."""
        return not self.kind or self.kind.startswith(_FLOATS)

    @property
    def is_zero(self) -> bool:
        """Whether all its finite elements are zero."""
        return not (self.norm or self.low or self.high or self.bad)

    @staticmethod
    def of(text: str) -> Weight:
        """Reads a line of the lock. Raises ValueError."""
        if " = " in text:
            head, _, values = text.partition(" = ")
            kind, digest = head.split(" ")
            return _of_values(kind, digest, values)
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError(text)
        kind = match["kind"]
        norm, low, high = (float(match[name]) for name in ("norm", "low", "high"))
        bad, rows = (int(match[name] or 0) for name in ("bad", "rows"))
        group = _GROUP.fullmatch(kind)
        count = int(group[1].replace(",", "")) if group else 1
        return Weight("" if group else kind, match["digest"], norm, low, high, bad, rows, "", count)


_LINE = re.compile(
    r"(?P<kind>[\d,]+ weights?|\S+) (?P<digest>[0-9a-f]+) norm=(?P<norm>\S+) min=(?P<low>\S+) "
    r"max=(?P<high>\S+)(?: nan=(?P<bad>\d+))?(?: zeros=(?P<rows>\d+))?"
)
_GROUP = re.compile(r"([\d,]+) weights?")


def _of_values(kind: str, digest: str, values: str) -> Weight:
    found = np.array([float(_NUMBERS.get(v, v)) for v in values.split(" ")])
    finite = found[np.isfinite(found)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    norm = float(np.linalg.norm(finite))
    return Weight(kind, digest, norm, low, high, len(found) - len(finite), values=values)


_NUMBERS = {"True": "1", "False": "0"}


def weights_of(model: ModelProto, folder: Path | None) -> dict[str, Weight]:
    """Returns the record of every constant tensor by name: initializers and values of Constant
    nodes, those of nested graphs and functions included. External data is read tensor by tensor.
    Raises InputError if it cannot be read.
    """
    found: dict[str, Weight] = {}
    for name, tensor in named(model):
        key, again = name, 2
        while key in found:
            key, again = f"{name}#{again}", again + 1
        found[key] = weight_of(tensor, folder)
    return found


def named(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yields the constant tensors of a model with their names; the name of a Constant node's value
    is that of its output.
    """
    yield from _of_graph(model.graph)
    for function in model.functions:
        for name, tensor in _of_nodes(function.node):
            yield f"{function.domain}::{function.name}/{name}", tensor


def _of_graph(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, sparse.values
        yield f"{sparse.values.name}.indices", sparse.indices
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, TensorProto]]:
    for node in nodes:
        name = next((output for output in node.output if output), node.name)
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for a in node.attribute:
            here = name if is_constant else f"{name}.{a.name}"
            if a.type == AttributeProto.TENSOR:
                yield here, a.t
            elif a.type == AttributeProto.TENSORS:
                yield from ((here, tensor) for tensor in a.tensors)
            elif is_constant and a.type in _LITERALS:
                dtype, read = _LITERALS[a.type]
                yield name, tensor_of(np.array(read(a), dtype), name)
        for graph in graphs_of(node):
            yield from _of_graph(graph)


_LITERALS: dict[int, tuple[Any, Any]] = {
    AttributeProto.FLOAT: (np.float32, lambda a: a.f),
    AttributeProto.FLOATS: (np.float32, lambda a: list(a.floats)),
    AttributeProto.INT: (np.int64, lambda a: a.i),
    AttributeProto.INTS: (np.int64, lambda a: list(a.ints)),
}


def weight_of(tensor: TensorProto, folder: Path | None) -> Weight:
    """Returns the record of one tensor. Raises InputError if its data cannot be read."""
    kind = f"{dtype_name(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"
    tally = _Tally(tuple(tensor.dims))
    for array in _arrays(tensor, folder):
        tally.add(array)
    return tally.weight(kind)


def array_of(tensor: TensorProto, folder: Path | None) -> Array:
    """Returns the elements of a tensor. Raises InputError if its data cannot be read."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    return np.asarray(elements(internalize(tensor, folder) if outside else tensor))


def _arrays(tensor: TensorProto, folder: Path | None) -> Iterator[Array]:
    outside = tensor.data_location == TensorProto.EXTERNAL
    plain = _PLAIN.get(tensor.data_type)
    if outside and plain is not None and not is_halved(tensor):
        yield from (np.frombuffer(data, plain) for data in pieces(tensor, folder))
    else:
        yield array_of(tensor, folder).reshape(-1)


@dataclass
class _Tally:
    """Statistics of a tensor, accumulated piece by piece."""

    shape: tuple[int, ...]
    at: int = 0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    bad: int = 0
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=_DIGEST))
    values: str = ""
    rows: Bools | None = None  # whether each has an element that is not zero
    columns: Bools | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > 1 and 0 not in self.shape:
            if math.prod(self.shape[1:]) <= _ROW:
                self.rows = np.zeros(self.shape[0], bool)
            self.columns = np.zeros(self.shape[-1], bool)

    def add(self, array: Array) -> None:
        if array.dtype.kind == "O":
            self.digest.update(repr(array.tolist()).encode("utf-8", "backslashreplace"))
            self.rows = self.columns = None
            return
        self.digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        whole = math.prod(self.shape) == array.size and array.dtype.kind != "c"
        if whole and 0 < array.size <= _VALUES:
            self.values = " ".join(str(v).replace(" ", "") for v in array)
        wide = array
        if array.dtype.kind == "c":
            wide = array.view(array.real.dtype)
            self.rows = self.columns = None
        elif array.dtype.kind != "f":  # booleans, integers, and types of ml_dtypes
            wide = array.astype(np.float64 if array.dtype.kind in "biu" else np.float32)
        finite = np.isfinite(wide)
        if not finite.all():
            self.bad += int(finite.size - finite.sum())
            kept = wide[finite]
        else:
            kept = wide
        if kept.size:
            self.low, self.high = (
                min(self.low, float(kept.min())),
                max(self.high, float(kept.max())),
            )
            exact = kept.astype(np.float64, copy=False)
            self.squares += float(np.dot(exact, exact))
        if self.rows is not None or self.columns is not None:
            self._mark(wide != 0)
        self.at += array.size

    def _mark(self, alive: Bools) -> None:
        """Marks the rows and columns of the elements that are not zero."""
        if self.rows is not None:
            length = math.prod(self.shape[1:])
            block, first = _block(alive, self.at, length), self.at // length
            self.rows[first : first + len(block)] |= block.any(axis=1)
        if self.columns is not None:
            self.columns |= _block(alive, self.at, len(self.columns)).any(axis=0)

    def weight(self, kind: str) -> Weight:
        low, high = (self.low, self.high) if self.low <= self.high else (0.0, 0.0)
        marks = (m for m in (self.rows, self.columns) if m is not None)
        zeros = sum(len(m) - int(m.sum()) for m in marks)
        rest = (math.sqrt(self.squares), low, high, self.bad, zeros, self.values)
        return Weight(kind, self.digest.hexdigest(), *rest)


def _block(alive: Bools, at: int, length: int) -> Bools:
    """Returns the elements from position `at` on as rows of this length, filled up with False."""
    before = at % length
    filled = np.zeros(-(-(before + alive.size) // length) * length, bool)
    filled[before : before + alive.size] = alive
    return filled.reshape(-1, length)


# ---- in the lock --------------------------------------------------------------------------------


def lines_of(weights: Mapping[str, Weight]) -> dict[str, str]:
    """Returns the lines of the lock: one a tensor, or one a group if there are too many."""
    return {name: str(weight) for name, weight in grouped(weights, MOST_LINES).items()}


def grouped(weights: Mapping[str, Weight], most: int) -> dict[str, Weight]:
    """Returns at most this many weights: those whose names begin alike become one group."""
    if len(weights) <= most:
        return dict(weights)
    parts = {name: re.split(r"(?<=[./])", name) for name in weights}
    deepest = max(map(len, parts.values()))
    keys = [{n: _stem(p, depth) for n, p in parts.items()} for depth in range(deepest, 0, -1)]
    keys += [{n: re.sub(r"\d+", "*", n) for n in weights}, dict.fromkeys(weights, "*")]
    chosen = next(found for found in keys if len({*found.values()}) <= most)
    return grouped_by(weights, chosen)


def _stem(parts: list[str], depth: int) -> str:
    return "".join(parts[:depth]) + ("*" if len(parts) > depth else "")


def grouped_by(weights: Mapping[str, Weight], keys: Mapping[str, str]) -> dict[str, Weight]:
    """Returns the weights, those with the same key as one group."""
    groups: dict[str, list[Weight]] = {}
    for name, weight in weights.items():
        groups.setdefault(keys[name], []).append(weight)
    return {key: _together(members) for key, members in groups.items()}


def _together(members: list[Weight]) -> Weight:
    if len(members) == 1:
        return members[0]
    digest = hashlib.blake2b("".join(w.digest for w in members).encode(), digest_size=_DIGEST)
    return Weight(
        "",
        digest.hexdigest(),
        math.sqrt(sum(w.norm * w.norm for w in members)),
        min(w.low for w in members),
        max(w.high for w in members),
        sum(w.bad for w in members),
        sum(w.zero_rows for w in members),
        count=len(members),
    )


def is_line(text: str) -> bool:
    """Whether a line of the lock can be read."""
    try:
        Weight.of(text)
    except ValueError:
        return False
    return True
