"""Searches the small graph that computes a new weight from constants of the old side.

A rule may compute a constant in numpy and store the result: a sum of two biases, a product of two
numbers, a sum of rows. The search tries views, signs, roots, sums, products and quotients of the
old constants at a few elements, and returns the graphs that agree there. A graph that it returns is
a guess: the field proves or refutes the algebra with it, and `weights` checks the stored bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.frozen import frozen
from onnxgrad.verify.exact.field import Array
from onnxgrad.verify.exact.values import BITS

_PROBES = 24  # elements at which expressions are compared first
_MOST_LEAVES = 12
_TRIPLES = 12  # the most terms of which sums and products of three are tried
_LARGEST = 1 << 22  # elements of a product or a sum that is computed
_NEAR = 2e-3  # relative: another number than the stored one, but meant to be it
_AGREEING, _OTHERS = 6, 10  # graphs that are returned
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@frozen
class Term:
    """A value computed from old constants: the constant `name`, or `op` of other terms. `ints` is
    the second operand of a Reshape or Expand, the axes of a sum, or the order of a Transpose.
    """

    op: str
    operands: tuple[Term, ...] = ()
    ints: tuple[int, ...] = ()
    name: str = ""
    array: Array | None = None

    @property
    def size(self) -> int:
        """How many operators compute the value."""
        return (self.op != "constant") + sum(t.size for t in self.operands)


@frozen
class Guess:
    """A graph that may compute a weight. `close`: to the rounding of floats; else the stored weight
    is another one.
    """

    witness: ModelProto
    close: bool


def guesses(old: ModelProto, tensor: TensorProto) -> list[Guess]:
    """Returns the graphs over constants of `old` that agree with a weight, the smallest first; then
    those that are near, and the smallest ones of all.
    """
    if tensor.data_type not in BITS:
        return []
    stored = numpy_helper.to_array(tensor).astype(np.float64)
    leaves = list(itertools.islice(_leaves(old, tensor.data_type), _MOST_LEAVES))
    if not leaves or not np.isfinite(stored).all():
        return []
    at = np.linspace(0, stored.size - 1, min(_PROBES, stored.size)).astype(np.int64)
    close, probed = 64 * 2.0 ** -BITS[tensor.data_type], stored.reshape(-1)[at]
    found: list[tuple[bool, int, int, Term]] = []
    others: list[Term] = []
    with np.errstate(all="ignore"):
        for more in (False, True):
            terms = list(_views([*leaves, *(_computed(leaves) if more else ())], stored.shape, at))
            for number, (term, probes) in enumerate(_expressions(terms)):
                difference = np.abs(probes - probed) / np.maximum(np.abs(probed), 1e-30)
                worst = float(np.max(difference, initial=0.0))
                if worst <= _NEAR:
                    found.append((worst > close, term.size, number, term))
            if not more:
                others = [t for t, _ in _expressions(terms) if len(set(map(id, t.operands))) == 2]
            if found:
                break
    found.sort(key=lambda item: item[:3])
    chosen = [(term, not far) for far, _, _, term in found[:_AGREEING]]
    chosen += [(term, False) for term in sorted(others, key=lambda t: t.size)[:_OTHERS]]
    return [Guess(_graph(old, term, tensor), near) for term, near in chosen]


def has_floats(model: ModelProto) -> bool:
    """Whether a graph has constants of floats, from which new ones may be computed."""
    return any(next(_leaves(model, dtype), None) is not None for dtype in BITS)


def _leaves(model: ModelProto, dtype: int) -> Iterator[tuple[Term, Array]]:
    """Yields the finite constants of a float dtype in a graph, small ones first; then numbers of
    attributes.
    """
    tensors = [(t.name, t) for t in model.graph.initializer]
    numbers = []
    for n in model.graph.node:
        for a in n.attribute:
            if n.op_type == "Constant" and a.HasField("t"):
                tensors.append((n.output[0], a.t))
            elif a.type == AttributeProto.FLOAT and a.f not in (0.0, 1.0):
                numbers.append(np.float64(a.f))
    for name, tensor in sorted(tensors, key=lambda item: int(np.prod(item[1].dims))):
        if tensor.data_type == dtype and np.prod(tensor.dims) <= _LARGEST:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            if np.isfinite(array).all():
                yield Term("constant", name=name, array=array), array
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    for number in dict.fromkeys(n for n in numbers if np.float64(n.astype(kind)) == n):
        yield Term("constant", array=np.asarray(number)), np.asarray(number)


def _expressions(terms: Sequence[tuple[Term, Array]]) -> Iterator[tuple[Term, Array]]:
    """Yields expressions of terms of one shape, with their elements at some places."""
    yield from terms
    unary = [*terms, *(u for t in terms for u in _unary(*t))]
    yield from unary[len(terms) :]
    pairs = []
    for (a, x), (b, y) in itertools.product(unary, repeat=2):
        for op, f in _BINARY.items():
            if op in ("Add", "Mul") and a is not b and id(a) > id(b):
                continue
            pairs.append((Term(op, (a, b)), f(x, y)))
            yield pairs[-1]
    if len(terms) <= _TRIPLES:
        plain = {id(t) for t, _ in terms}
        for pair, x in pairs:
            if not all(id(t) in plain for t in pair.operands):
                continue
            for (b, y), (op, f) in itertools.product(terms, _BINARY.items()):
                yield Term(op, (pair, b)), f(x, y)


def _unary(term: Term, x: Array) -> Iterator[tuple[Term, Array]]:
    yield Term("Neg", (term,)), -x
    yield Term("Reciprocal", (term,)), 1.0 / x
    yield Term("Sqrt", (term,)), np.sqrt(x)
    yield Term("Reciprocal", (Term("Sqrt", (term,)),)), 1.0 / np.sqrt(x)


def _computed(leaves: Sequence[tuple[Term, Array]]) -> Iterator[tuple[Term, Array]]:
    """Yields the sums of constants over an axis, and the products of two."""
    for term, array in leaves:
        if array.ndim > 1:
            for k in range(array.ndim):
                yield Term("ReduceSum", (term,), (k,)), array.sum(k)
    matrices = [
        pair
        for term, array in leaves
        if array.ndim in (1, 2)
        for pair in ((term, array), (Term("Transpose", (term,), (1, 0)), array.T))[: array.ndim]
    ]
    for (s, a), (t, b) in itertools.product(matrices, repeat=2):
        fits = a.ndim + b.ndim > 2 and a.shape[-1] == b.shape[0]
        if fits and a.size * b.shape[-1] <= _LARGEST:
            yield Term("MatMul", (s, t)), a @ b


def _views(
    values: Sequence[tuple[Term, Array]], shape: tuple[int, ...], at: Array
) -> Iterator[tuple[Term, Array]]:
    """Yields the views of values, or of their transposes, that broadcast to a shape: their elements
    at some places.
    """
    for term, array in values:
        views = [(term, array)]
        if array.ndim > 1:
            order = tuple(range(array.ndim))[::-1]
            views.append((Term("Transpose", (term,), order), array.T))
        for view, moved in views:
            for fitted, shaped in _fitted(view, moved, shape):
                yield fitted, np.broadcast_to(shaped, shape).reshape(-1)[at]


def _fitted(term: Term, array: Array, shape: tuple[int, ...]) -> Iterator[tuple[Term, Array]]:
    """Yields the views of a value that broadcast to a shape."""
    if array.shape == shape:
        yield term, array
    elif array.size == int(np.prod(shape)):
        yield Term("Reshape", (term,), shape), array.reshape(shape)
    elif array.size == 1:
        yield Term("Expand", (Term("Reshape", (term,), ()),), shape), array.reshape(())
    else:
        width = max(array.shape, default=1)
        if width != array.size:
            return
        for k, size in enumerate(shape):  # one number for each channel
            if size == width:
                channel = tuple(width if i == k else 1 for i in range(len(shape)))
                view = Term("Reshape", (term,), channel)
                yield Term("Expand", (view,), shape), array.reshape(channel)


def _graph(old: ModelProto, term: Term, tensor: TensorProto) -> ModelProto:
    """Returns a term as a model without inputs."""
    model = ModelProto(ir_version=max(old.ir_version, 8))
    model.opset_import.add(domain="", version=18)
    graph, names = model.graph, itertools.count()
    graph.name = "witness"
    held: dict[str, str] = {}

    def constant(array: Any, dtype: int = tensor.data_type) -> str:
        name = f"constant {next(names)}"
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        graph.initializer.append(numpy_helper.from_array(np.asarray(array).astype(kind), name))
        return name

    def value(t: Term) -> str:
        if t.op == "constant":
            key = t.name or repr(t.array)
            if key not in held:
                held[key] = constant(t.array)
            return held[key]
        inputs = [value(o) for o in t.operands]
        attributes: dict[str, Any] = {}
        if t.op == "Transpose":
            attributes["perm"] = list(t.ints)
        elif t.op in ("Reshape", "Expand", "ReduceSum"):
            inputs.append(constant(np.array(t.ints, np.int64), TensorProto.INT64))
            attributes = {"keepdims": 0} if t.op == "ReduceSum" else {}
        name = f"value {next(names)}"
        graph.node.append(helper.make_node(t.op, inputs, [name], **attributes))
        return name

    result = value(term)
    graph.output.append(helper.make_tensor_value_info(result, tensor.data_type, tensor.dims))
    return model
