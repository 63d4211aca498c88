"""The rows of tables that differ between two models: a run has to read them, or nothing is known of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from onnxgrad.ir.protobufs import elements, every_graph, every_node
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.verify.coverage.targets import LOOKUPS, axis_of
from onnxgrad.verify.subject import Subject

MOST_ROWS = 64  # of a table that runs have to read, where more differ


def differing_rows(a: Subject, b: Subject) -> dict[str, list[int]]:
    """Table -> the rows that differ, of the initializers of equal name, shape and type that nodes
    of `a` look rows up in. Raises InputError when data is damaged or missing.
    """
    theirs = {t.name: t for t in _initializers(b.proto)}
    found = {}
    axes = dict(_tables(a.proto))
    for tensor in _initializers(a.proto):
        other = theirs.get(tensor.name)
        if tensor.name not in axes or other is None or not tensor.dims:
            continue
        if list(tensor.dims) != list(other.dims) or tensor.data_type != other.data_type:
            continue
        rows = _rows(tensor, a, other, b, axes[tensor.name])
        if rows:
            found[tensor.name] = rows
    return found


def chosen(rows: list[int]) -> list[int]:
    """At most MOST_ROWS of them, spread evenly."""
    if len(rows) <= MOST_ROWS:
        return rows
    return [rows[int(i)] for i in np.linspace(0, len(rows) - 1, MOST_ROWS).round()]


def _rows(x: TensorProto, a: Subject, y: TensorProto, b: Subject, axis: int) -> list[int]:
    if x.raw_data and x.raw_data == y.raw_data:
        return []
    p, q = (np.moveaxis(_values(t, s), axis, 0) for t, s in ((x, a), (y, b)))
    if p.dtype == object:
        differ = p != q
    else:  # by bits: NaN is NaN
        p, q = (np.ascontiguousarray(v).reshape(len(v), -1).view(np.uint8) for v in (p, q))
        differ = p != q
    return [int(i) for i in np.flatnonzero(differ.reshape(len(p), -1).any(axis=1))]


def _values(tensor: TensorProto, subject: Subject) -> np.ndarray[Any, Any]:
    if tensor.data_location == TensorProto.EXTERNAL and isinstance(subject.source, Path):
        tensor = internalize(tensor, subject.source.parent)
    return elements(tensor)


def _initializers(model: ModelProto) -> Iterator[TensorProto]:
    for graph in every_graph(model.graph):
        yield from graph.initializer


def _tables(model: ModelProto) -> Iterator[tuple[str, int]]:
    nodes: Iterable[NodeProto] = every_node(model.graph.node)
    for node in nodes:
        for table, index in LOOKUPS.get(node.op_type, ()):
            if len(node.input) > max(table, index):
                yield node.input[table], axis_of(node)
