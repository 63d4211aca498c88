"""The constants that differ between two models, and the parts of them that no run read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, tensor_dtype_to_np_dtype

from onnxgrad.errors import OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.protobufs import elements, every_graph, every_node, graphs_of, tensor_of
from onnxgrad.verify.coverage.counters import Array, Goal, Reach
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.tolerance import is_float

MOST_ROWS = 64  # rows of a table that runs have to read, if more differ
_MOST = 1 << 25  # elements of a constant that is computed from those that differ
_SECONDS = 5.0  # to compute one
_WIDTHS = (1, 2, 4, 8)  # bytes of elements that are compared by bits


@frozen
class Unread:
    """The part of a constant that differs and that no run read: rows of a table, or elements."""

    rows: bool
    count: int


@dataclass
class Differing:
    """The constants of the original whose elements differ in the second model. Constants are paired
    by name, those of other names if they alone have their shape and type.

    `all_constants` False: tables are compared, weights are not. `explained`: constants whose
    difference is proved in another way.
    """

    original: ProofModel
    candidate: ProofModel
    all_constants: bool = True
    explained: set[str] = field(default_factory=set)
    _masks: dict[str, Array | None] = field(default_factory=dict)

    @cached_property
    def _pairs(self) -> dict[str, tuple[TensorProto, TensorProto]]:
        ours, theirs = dict(_constants(self.original.proto)), dict(_constants(self.candidate.proto))
        pairs = {name: (t, theirs[name]) for name, t in ours.items() if name in theirs}
        left = [name for name in ours if name not in theirs]
        new = [name for name in theirs if name not in ours]
        ours_by, theirs_by = (Counter(_kind(t) for t in side) for side in (
            [ours[n] for n in left], [theirs[n] for n in new]))  # fmt: skip
        by_kind = {_kind(theirs[n]): n for n in new}
        for name in left:
            kind = _kind(ours[name])
            if ours_by[kind] == theirs_by[kind] == 1 and ours[name].dims:
                pairs[name] = ours[name], theirs[by_kind[kind]]
        return {
            n: (x, y) for n, (x, y) in pairs.items() if _kind(x) == _kind(y) and self._may(x, y)
        }

    def _may(self, x: TensorProto, y: TensorProto) -> bool:
        """Returns whether two constants may differ, without reading those outside of the file."""
        if x.data_location == TensorProto.EXTERNAL == y.data_location:
            same = self.original.folder == self.candidate.folder is not None
            return not same or [*x.external_data] != [*y.external_data]
        if TensorProto.EXTERNAL in (x.data_location, y.data_location):
            return True
        return not (x.raw_data and x.raw_data == y.raw_data)

    @property
    def any(self) -> bool:
        """Whether a constant differs."""
        return any(self.mask(name) is not None for name in self._pairs)

    def partners(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the names of these constants in the second model."""
        theirs = dict(_constants(self.candidate.proto))
        return {n: n if n in theirs else self._pairs[n][1].name for n in names}

    @cached_property
    def _makers(self) -> dict[str, NodeProto]:
        nodes = every_node(self.original.proto.graph.node)
        return {name: node for node in nodes for name in node.output}

    def mask(self, value: str) -> Array | None:
        """Returns which elements of a constant value differ, None if none do."""
        if value not in self._masks:
            self._masks[value] = self._mask(value)
        return self._masks[value]

    def _mask(self, value: str) -> Array | None:
        if value in self._pairs:
            x, y = self._pairs[value]
            width = np.dtype(tensor_dtype_to_np_dtype(x.data_type)).itemsize
            by_pieces = self.original.lies_outside(x) and self.candidate.lies_outside(y)
            if by_pieces and width in _WIDTHS and raw_bytes(x) == math.prod(x.dims) * width:
                return self._mask_by_pieces(x, y, width)
            return _differ(elements(self.original.read(x)), elements(self.candidate.read(y)))
        needed, sources = self._behind(value)
        different = [s for s in sources if s in self._pairs and self.mask(s) is not None]
        if not different or sum(np.prod(self._pairs[s][0].dims) for s in different) > _MOST:
            return None
        before = self._computed(value, needed, sources, ())
        after = self._computed(value, needed, sources, different)
        return None if before is None or after is None else _differ(before, after)

    def _mask_by_pieces(self, x: TensorProto, y: TensorProto, width: int) -> Array | None:
        """Returns which elements of `width` bytes differ, by bits."""
        mask: Array | None = None
        bits, at = np.dtype(f"u{width}"), 0
        for ours, theirs in zip(self.original.pieces(x), self.candidate.pieces(y), strict=True):
            if ours != theirs:
                mask = np.zeros(math.prod(x.dims), bool) if mask is None else mask
                differ = np.frombuffer(ours, bits) != np.frombuffer(theirs, bits)
                mask[at : at + differ.size] = differ
            at += len(ours) // width
        return None if mask is None else mask.reshape(tuple(x.dims))

    def _visible(self, value: str, mask: Array) -> Array:
        """Returns which elements of a constant differ by more than rounding may."""
        if value not in self._pairs:
            return mask
        x, y = (
            elements(model.read(tensor))
            for model, tensor in zip((self.original, self.candidate), self._pairs[value])
        )
        if not is_float(x):
            return mask
        a, b = x.astype(np.float64), y.astype(np.float64)
        unit = {2: 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}.get(x.dtype.itemsize, 0.125)
        largest = np.max(np.abs(a), where=np.isfinite(a), initial=0.0)
        return np.asarray(mask & ~(np.abs(a - b) <= 4 * unit * largest))

    def _behind(self, value: str) -> tuple[list[NodeProto], list[str]]:
        """Returns the nodes that compute a constant value, and the constants that they read."""
        nodes: dict[int, NodeProto] = {}
        sources, todo = dict[str, None](), [value]
        while todo:
            name = todo.pop()
            node = self._makers.get(name)
            if node is None or node.op_type == "Constant":
                sources[name] = None
            elif id(node) not in nodes:
                nodes[id(node)] = node
                todo += [n for n in node.input if n]
        return list(nodes.values()), list(sources)

    def _computed(
        self, value: str, nodes: Sequence[NodeProto], sources: Iterable[str], other: Sequence[str]
    ) -> Array | None:
        """Returns a constant value of the original, with `other` constants of the second model."""
        known = dict(_constants(self.original.proto))
        if any(name not in known for name in sources) or any(graphs_of(n) for n in nodes):
            return None
        read = {
            n: self.candidate.read(self._pairs[n][1])
            if n in other
            else self.original.read(known[n])
            for n in sources
        }
        values = [tensor_of(elements(t), name) for name, t in read.items()]
        graph = make_graph(list(nodes), "constant", [], [ValueInfoProto(name=value)], values)
        model = make_model(graph, opset_imports=self.original.proto.opset_import)
        model.functions.extend(self.original.proto.functions)
        try:
            found = Float64(model).run({}, seconds=_SECONDS)[value]
        except OnnxgradError:
            return None
        return np.asarray(found) if isinstance(found, np.ndarray) else None

    # ---- what runs read ----------------------------------------------------------------------

    def unread(self, reaches: Sequence[Reach]) -> dict[str, Unread]:
        """Returns, by constant, how much differs and was not read. A constant that several nodes
        read counts where most of it was read.
        """
        found: dict[str, Unread] = {}
        for value, sites in self._sites(reaches).items():
            mask = self.mask(value)
            assert mask is not None
            left = mask & ~_read(mask, sites)
            axes = {site.axis for site in sites}
            (axis,) = axes if len(axes) == 1 and all(s.rows or s.ends for s in sites) else {None}
            rows = axis is not None and mask.ndim > 0
            if rows:
                count = int(_along(left, axis or 0).sum())
            else:
                count = int((left & self._visible(value, mask)).sum())
            _, sources = self._behind(value)
            for name in (s for s in sources if s in self._pairs and s not in self.explained):
                if self.mask(name) is not None and found.get(name, Unread(rows, count)).count >= (
                    count
                ):
                    found[name] = Unread(rows, count)
        return {name: unread for name, unread in found.items() if unread.count}

    def goals(self, reaches: Sequence[Reach], most: int) -> tuple[list[Goal], list[str]]:
        """Returns which rows are still to be read, at most this many of a table, and the tables."""
        goals, tables = [], []
        for value, sites in self._sites(reaches).items():
            mask = self.mask(value)
            assert mask is not None
            read = _read(mask, sites)
            for site in sites:
                if site.axis is None or not (site.rows or site.ends) or not mask.ndim:
                    continue
                differ, missed = (_along(m, site.axis) for m in (mask, mask & ~read))
                # rows that rounding does not explain come first: some row of them may be wrong
                large = _along(mask & self._visible(value, mask), site.axis)
                differ = large if (large & missed).any() else differ
                rows = chosen(np.flatnonzero(differ), most)
                already = int((differ & ~missed).sum())
                rows = rows[missed[rows]][: max(0, min(most, int(differ.sum())) - already)]
                if not len(rows):
                    continue
                tables.append(value)
                wanted = rows.astype(np.float64)
                if site.rows:
                    goals.append(Goal(site.scope, site.rows, wanted))
                else:
                    goals.append(Goal(site.scope, site.ends, wanted[-1:] + 1))
        return goals, list(dict.fromkeys(tables))

    def _sites(self, reaches: Sequence[Reach]) -> dict[str, list[Reach]]:
        """Returns the nodes that read constants which differ, by the value that they read."""
        tables = {r.value for r in reaches if r.rows or r.ends}
        found: dict[str, list[Reach]] = defaultdict(list)
        for reach in reaches if self._pairs else ():
            wanted = self.all_constants or reach.value in tables
            if not reach.scope and wanted and self.mask(reach.value) is not None:
                found[reach.value].append(reach)
        return found


def chosen(rows: Array, most: int = MOST_ROWS) -> Array:
    """Returns at most this many of the rows, evenly spread."""
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).round().astype(int)])


def _constants(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    for graph in every_graph(model.graph):
        yield from ((t.name, t) for t in graph.initializer)
        for node in graph.node:
            if node.op_type == "Constant":
                yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")


def _kind(tensor: TensorProto) -> tuple[int, tuple[int, ...]]:
    return tensor.data_type, tuple(tensor.dims)


def _differ(x: Array, y: Array) -> Array | None:
    """Returns which elements differ, by bits because NaN differs from NaN; None if none do."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return None
    if x.dtype == object or not x.size or x.dtype.itemsize not in _WIDTHS:
        mask = np.asarray(x != y)
    else:
        bits = np.dtype(f"u{x.dtype.itemsize}")
        mask = np.ascontiguousarray(x).view(bits) != np.ascontiguousarray(y).view(bits)
        mask = np.asarray(mask).reshape(x.shape)
    return np.asarray(mask) if mask.any() else None


def _read(mask: Array, sites: Iterable[Reach]) -> Array:
    """Returns which elements of a value its readers read."""
    read = np.zeros(mask.shape, bool)
    for site in sites:
        part = np.asarray(site.mask, bool)
        if site.axis is not None and part.ndim == 1:
            shape = [1] * mask.ndim
            shape[site.axis] = part.size
            part = part.reshape(shape)
        try:
            read |= np.broadcast_to(part, mask.shape)
        except ValueError:  # the value had another shape
            read[...] = True
    return read


def _along(mask: Array, axis: int) -> Array:
    """Returns the positions along an axis at which any element is set."""
    return np.asarray(np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).any(axis=1))


def as_counts(found: Mapping[str, Unread], rows: bool) -> dict[str, int]:
    """Returns the numbers of unread rows, or of unread elements, by constant."""
    return {name: unread.count for name, unread in found.items() if unread.rows == rows}
