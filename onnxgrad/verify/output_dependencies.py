"""Dependencies of outputs: the float types and the new weights on the paths to each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import (
    elements,
    every_graph,
    every_node,
    graphs_of,
    model_nodes,
    reads,
    scheduled,
)
from onnxgrad.ir.types import Array
from onnxgrad.verify.feeds.dims import tensor_types
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.reference.client import typed
from onnxgrad.verify.reference.moved_constants import Roundings
from onnxgrad.verify.tolerance import HALF_UNIT

_TYPES = frozenset({"to", "dtype", "output_dtype"})  # attributes that are element types
_FLOATS = {
    code: onnx.helper.tensor_dtype_to_np_dtype(code).name
    for code in TensorProto.DataType.values()
    if code and "float" in TensorProto.DataType.Name(code).lower()
} | {TensorProto.DOUBLE: "float64"}

Key = tuple[str, str, str]  # domain, name and overload of a function


@frozen
class Marks:
    """Bits attached to parts of a model: to top-level values by name, to nodes (nested ones too) by
    a function of the node, and to functions. Calls have the bits of their function.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    node: Callable[[NodeProto], int] = lambda node: 0
    functions: Mapping[Key, int] = field(default_factory=dict)


def gathered(model: onnx.ModelProto, marks: Marks) -> dict[str, int]:
    """Returns, by output, the union of the bits on all paths to it. Visits every node once."""
    functions = {key_of(f): f for f in model.functions}
    calls: dict[Key, int] = {}

    def of_call(key: Key) -> int:
        if key in functions and key not in calls:
            calls[key] = marks.functions.get(key, 0)  # no function calls itself
            calls[key] |= of_nodes(functions[key].node)
        return calls.get(key, 0)

    def of_nodes(nodes: Iterable[NodeProto]) -> int:
        found = 0
        for node in every_node(nodes):
            found |= marks.node(node) | of_call((node.domain, node.op_type, node.overload))
        return found

    found = dict(marks.values)
    for node in scheduled(list(model.graph.node)):
        bits = of_nodes([node])
        for name in reads(node):
            bits |= found.get(name, 0)
        for name in node.output:
            found[name] = bits
    return {v.name: found.get(v.name, 0) for v in model.graph.output}


def key_of(function: FunctionProto) -> Key:
    """Returns the key by which calls name a function."""
    return function.domain, function.name, function.overload


def float_types(model: onnx.ModelProto, weights: Iterable[int] = ()) -> dict[str, set[str]]:
    """Returns the float dtypes, by numpy's names, in which each output is computed: the dtypes of
    the inputs and casts on its paths. Weights do not count, because they are exact, unless their
    element type is in `weights`.
    """
    kinds = {*weights}
    values = {t.name: _bit(t.data_type) for t in model.graph.initializer if t.data_type in kinds}
    for value in model.graph.input:
        for tensor in tensor_types(value.type):
            values[value.name] = values.get(value.name, 0) | _bit(tensor.elem_type)
    found = gathered(model, Marks(values, _named_types))
    return {
        name: {dtype for code, dtype in _FLOATS.items() if bits & (1 << code)}
        for name, bits in found.items()
    }


def _bit(code: int) -> int:
    return 1 << code if code in _FLOATS else 0


def _named_types(node: NodeProto) -> int:
    found = 0
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in _TYPES:
            found |= _bit(attribute.i)
    return found


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the element types of values, nested ones too, if the file or onnx's inference knows
    them.
    """
    found: dict[str, int] = {}
    for graph in every_graph(typed(model).graph):
        for v in (*graph.value_info, *graph.input, *graph.output):
            found[v.name] = v.type.tensor_type.elem_type
        found |= {t.name: t.data_type for t in graph.initializer}
    return found


_WEIGHT_TYPES = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_NO_ROUNDINGS = Roundings(np.zeros(0), np.zeros(0))
_ELEMENTS = 1 << 26  # with more elements, the search is too slow


# the place of a constant: the name of a top-level initializer, the first output of the node that
# contains it, or the key of a function
_Place: TypeAlias = "str | tuple[str] | Key"
_Placed: TypeAlias = "tuple[_Place, TensorProto]"


def new_weights(a: ProofModel, b: ProofModel, *, claimed: bool = False) -> dict[str, set[int]]:
    """Returns, by output of `b`, the float types (TensorProto.DataType) of new weights on its
    paths. A weight is new if it holds a value other than 0 and 1 that no weight of `a` holds.

    Weights that were moved, merged, split or transposed hold old values. Weights that no output
    reads do not count. If `b` still reads all weights of `a`, nothing is new. If there are very
    many elements, or if new values are `claimed` and only their types matter, a weight is new if no
    weight of `a` has the same contents. Raises InputError if data is damaged or missing.
    """
    if a.source == b.source:
        return {}
    before = list(_tensors(a.proto))
    if sum(math.prod(t.dims) for _, t in (*before, *_tensors(b.proto))) > _ELEMENTS:
        return _by_output(b, list(_tensors(b.proto, _needed(b.proto))))
    # read in pieces: one may be as large as the model
    known = {_content(a, t) for _, t in before}
    after = list(_tensors(b.proto, _needed(b.proto)))
    contents = [_content(b, t) for _, t in after]
    changed = [found for found, content in zip(after, contents) if content not in known]
    if claimed or not changed:
        return _by_output(b, changed)
    if known <= set(contents):
        return {}  # all weights of a are still there: none was replaced by a computed one
    values = _distinct(np.concatenate([_values(b.read(t)) for _, t in changed]))
    if not values.size:
        return {}
    old = (values == 0.0) | (values == 1.0)
    for _, t in before:
        theirs = _values(a.read(t))
        places = _places(theirs, values)
        old[places[values[places] == theirs]] = True
    return _by_output(
        b, [found for found in changed if not old[_places(_values(b.read(found[1])), values)].all()]
    )


def roundings(a: ProofModel, b: ProofModel) -> tuple[Roundings, Roundings]:
    """Returns the constants of each model that the other does not have. They may be roundings of
    one number, such as 1 / sqrt(2) as a float and inside of Gelu, or of a product of weights. Where
    the other has such constants, those that only one computes in each run are among its own: each
    operator on the way to a folded constant rounded its result.

    Constants of few digits are exact. If there are very many elements, both are empty. Raises
    InputError as `new_weights`.
    """
    size = sum(math.prod(t.dims) for m in (a, b) for _, t in _tensors(m.proto))
    if a.source == b.source or size > _ELEMENTS:
        return _NO_ROUNDINGS, _NO_ROUNDINGS
    tensors = _lone(*(_magnitudes(_tensor_values(m)) for m in (a, b)))
    # apart from tensors, because an operator that has a constant as its attribute rounds elsewhere
    attributes = _lone(*(_magnitudes(_attribute_values(m)) for m in (a, b)))
    first, second = (_union([mine, other]) for mine, other in zip(tensors, attributes, strict=True))
    return _computing(first, a, b, second), _computing(second, b, a, first)


def _computing(mine: Roundings, a: ProofModel, b: ProofModel, theirs: Roundings) -> Roundings:
    """Returns the roundings of `a` with those of constants that it computes and `b` does not, if
    `b` has constants that `a` lacks.
    """
    names = (_computed(a.proto) - _computed(b.proto)) if theirs.values.size else set[str]()
    types = value_types(a.proto) if names else {}
    units = {n: HALF_UNIT[types[n]] for n in sorted(names) if types.get(n) in HALF_UNIT}
    return replace(mine, results=units)


# operators whose results are exact, or no constants
_EXACT = frozenset({*domains.MOVES, "Cast", "CastLike", "Constant", "ConstantOfShape", "Range"})
_SIZES = frozenset({"Shape", "Size"})


def _computed(model: ModelProto) -> set[str]:
    """Returns the top-level results that operators which round compute from constants and sizes
    alone.
    """
    known = {t.name for t in model.graph.initializer} - {v.name for v in model.graph.input}
    found = set[str]()
    for node in scheduled(list(model.graph.node)):
        if node.op_type not in _SIZES and (
            node.domain or node.op_type in domains.RANDOM or not known.issuperset(reads(node))
        ):
            continue
        known.update(filter(None, node.output))
        if node.op_type not in _EXACT | _SIZES:
            found.update(filter(None, node.output))
    return found


def _lone(a: Roundings, b: Roundings) -> tuple[Roundings, Roundings]:
    """Returns the values that only one of two sets has."""

    together = np.sort(np.concatenate([a.values, b.values]))
    common = together[1:][together[1:] == together[:-1]]

    def without(mine: Roundings) -> Roundings:
        if not common.size:
            return mine
        new = common[_places(mine.values, common)] != mine.values
        return Roundings(mine.values[new], mine.units[new])

    return without(a), without(b)


def _tensor_values(model: ProofModel) -> Iterator[tuple[int, Array]]:
    """Yields the type and the elements of each constant that is a tensor."""
    for _, t in _tensors(model.proto, _needed(model.proto)):
        yield t.data_type, _elements(model.read(t))


def _attribute_values(model: ProofModel) -> Iterator[tuple[int, Array]]:
    """Yields the values of the other attributes that are floats."""
    for node in model_nodes(model.proto):
        found = [v for a in node.attribute for v in _floats(a)]
        if found and node.op_type != "Constant":
            yield TensorProto.FLOAT, np.asarray(found, np.float64)


def _magnitudes(constants: Iterable[tuple[int, Array]]) -> Roundings:
    """Returns the magnitudes of the constants that have more digits than exact ones."""
    of_type: dict[int, list[Array]] = {}
    for code, values in constants:
        of_type.setdefault(code, []).append(np.abs(values))
    found = []
    for code, parts in of_type.items():
        sizes = _distinct(np.concatenate(parts)).astype(np.float64)
        digits = np.frexp(sizes)[0] * 2.0 ** (-math.log2(HALF_UNIT[code]) // 2)
        sizes = sizes[np.isfinite(sizes) & (digits != np.round(digits))]
        found.append(Roundings(sizes, np.full(sizes.size, HALF_UNIT[code])))
    return _union(found)


def _union(parts: Sequence[Roundings]) -> Roundings:
    """Returns all values; of one in several types the one of the coarsest."""
    parts = sorted(filter(None, parts), key=lambda p: -p.units.max())
    if len(parts) < 2:
        return parts[0] if parts else _NO_ROUNDINGS
    values, first = np.unique(np.concatenate([p.values for p in parts]), return_index=True)
    return Roundings(values, np.concatenate([p.units for p in parts])[first])


def _floats(attribute: AttributeProto) -> Iterable[float]:
    if attribute.type == AttributeProto.FLOAT:
        return [attribute.f]
    return attribute.floats if attribute.type == AttributeProto.FLOATS else []


def _by_output(model: ProofModel, changed: list[_Placed]) -> dict[str, set[int]]:
    """Returns the types of these constants, by the outputs that they reach."""
    bits: dict[_Place, int] = {}
    for place, tensor in changed:
        bits[place] = bits.get(place, 0) | 1 << tensor.data_type
    values = {place: mask for place, mask in bits.items() if isinstance(place, str)}
    functions = {
        place: mask for place, mask in bits.items() if isinstance(place, tuple) and len(place) == 3
    }
    marks = Marks(values, lambda node: bits.get(_place(node), 0), functions)
    found = gathered(model.proto, marks) if changed else {}
    return {
        name: {code for code in _WEIGHT_TYPES if mask & (1 << code)} for name, mask in found.items()
    }


def _places(values: Array, among: Array) -> Array:
    """Returns where each value stands, or would stand, among others, which are sorted."""
    return np.minimum(np.searchsorted(among, values), len(among) - 1)


def _content(model: ProofModel, tensor: TensorProto) -> tuple[int, bytes]:
    digest = hashlib.blake2b(digest_size=16)
    if model.lies_outside(tensor):
        for data in model.pieces(tensor):
            digest.update(data)
    else:
        digest.update(tensor.raw_data or elements(tensor).tobytes())
    return tensor.data_type, digest.digest()


def _values(tensor: TensorProto) -> Array:
    """Returns the finite values of a tensor, sorted, each once."""
    return _distinct(_elements(tensor).astype(np.float64))


def _distinct(values: Array) -> Array:
    """Returns the values, sorted, each once. np.unique does too, but imports numpy.ma first, which
    takes as long as a million values.
    """
    ordered = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]])


def _elements(tensor: TensorProto) -> Array:
    """Returns the finite elements of a tensor, in float32 if that holds them: sorting takes half
    the time.
    """
    array = elements(tensor)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    array = array.reshape(-1)
    finite = np.isfinite(array)
    return array if finite.all() else np.asarray(array[finite])


def _needed(model: ModelProto) -> set[str]:
    """Returns the top-level values that the outputs of a model need."""
    found = {v.name for v in model.graph.output}
    for node in reversed(scheduled(list(model.graph.node))):
        if not found.isdisjoint(node.output):
            found.update(reads(node))
    return found


def _tensors(model: ModelProto, needed: set[str] | None = None) -> Iterator[_Placed]:
    """Yields the floating-point constants that a run of the model may read. `needed`: the top-level
    values that count; None: all.
    """
    yield from (
        (t.name, t) for t in _initializers(model.graph) if needed is None or t.name in needed
    )
    for node in model.graph.node:
        if needed is not None and needed.isdisjoint(node.output):
            continue
        yield from ((_place(node), t) for t in _of_nodes([node]))
    for function in model.functions:
        yield from ((key_of(function), t) for t in _of_nodes(function.node))


def _place(node: NodeProto) -> tuple[str]:
    return (next(iter(node.output), ""),)


def _initializers(graph: GraphProto) -> list[TensorProto]:
    found = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    return [tensor for tensor in found if tensor.data_type in _WEIGHT_TYPES]


def _of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in every_node(nodes):
        for graph in graphs_of(node):
            yield from _initializers(graph)
        for attribute in node.attribute:
            kind = attribute.type  # read once: that takes as long as the rest
            if kind == AttributeProto.TENSOR and attribute.t.data_type in _WEIGHT_TYPES:
                yield attribute.t
            elif (
                kind == AttributeProto.SPARSE_TENSOR
                and attribute.sparse_tensor.values.data_type in _WEIGHT_TYPES
            ):
                yield attribute.sparse_tensor.values
            elif (
                kind in (AttributeProto.FLOAT, AttributeProto.FLOATS) and node.op_type == "Constant"
            ):
                values = attribute.floats if kind == AttributeProto.FLOATS else [attribute.f]
                yield TensorProto(
                    data_type=TensorProto.FLOAT, dims=[len(values)], float_data=values
                )
