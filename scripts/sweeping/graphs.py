"""A graph that grows node by node from random choices. Sizes that depend on data are symbols.

Inputs and weights are small multiples of a half, so that sums and products are exact in every dtype
and comparisons do not depend on the order of summation. Rounded values (Tanh, Softmax) are marked
and never compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
INT, BOOL = TensorProto.INT64, TensorProto.BOOL
Dim = int | str


@dataclass(frozen=True)
class Value:
    """A value's name, dtype and sizes. `exact`: it is computed without rounding."""

    name: str
    dtype: int
    dims: tuple[Dim, ...]
    exact: bool = True


class Names:
    """Unique names for a whole model, and its shared initializers."""

    def __init__(self, rng: Random, opset: int, dtype: int) -> None:
        self.rng, self.opset, self.dtype = rng, opset, dtype
        self.weights: list[tuple[Value, TensorProto]] = []
        self.functions: list[tuple[str, Any]] = []
        self.count = 0

    def new(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def array(self, dims: Sequence[int], dtype: int) -> np.ndarray[Any, Any]:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        size = int(np.prod(dims, dtype=int))
        pool = (
            [0, 1]
            if dtype == BOOL
            else [-1, 0, 1, 1, 2]
            if dtype == INT
            else [-1, -0.5, 0, 0.5, 0.5, 1, 1, 2]
        )
        return np.array(self.rng.choices(pool, k=size), kind).reshape(dims)

    def weight(self, dims: Sequence[int], dtype: int) -> Value:
        """Returns a constant, often an existing one."""
        same = [
            v for v, _ in self.weights if v.exact and v.dims == tuple(dims) and v.dtype == dtype
        ]
        if same and self.rng.random() < 0.5:
            return self.rng.choice(same)
        return self.constant(self.array(dims, dtype))

    def constant(self, array: Any, *, own: bool = False) -> Value:
        """Returns a constant. With `own`, only one chain uses it, and no caller may override it.

        Large constants are like `own`: a large weight may overflow, depending on the order of a
        sum.
        """
        array = np.asarray(array)
        tensor = numpy_helper.from_array(array, self.new("w"))
        small = array.dtype.kind != "f" or bool(np.abs(array, where=True).max(initial=0) < 100)
        value = Value(tensor.name, tensor.data_type, array.shape, exact=small and not own)
        self.weights.append((value, tensor))
        return value


class Block:
    """A growing graph: the main graph, a branch or a body."""

    def __init__(self, names: Names, outer: Sequence[Value] = ()) -> None:
        self.names, self.rng = names, names.rng
        self.nodes: list[NodeProto] = []
        self.values: list[Value] = []
        self.outer = list(outer)

    # ---- choosing --------------------------------------------------------------------------------

    def pick(self, test: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """Returns a value that passes the test. Late values and the first few are more likely, so
        that chains grow and branches share values.
        """
        pool = [v for v in [*self.outer, *self.values] if test(v)]
        if not pool:
            return None
        likely = [*pool[-3:], *pool[-3:], *pool[:2], *pool]
        return self.rng.choice(likely)

    def floating(self, rank: int | None = None, exact: bool = False) -> Value | None:
        return self.pick(
            lambda v: (
                v.dtype == self.names.dtype
                and (rank is None or len(v.dims) == rank)
                and (v.exact or not exact)
            )
        )

    def beside(self, v: Value) -> Value:
        """Something to combine with `v` elementwise: of its very sizes, a constant row or
        column, or a scalar.
        """
        same = self.pick(lambda u: u.dtype == v.dtype and u.dims == v.dims)
        known = [d if isinstance(d, int) and self.rng.random() < 0.6 else 1 for d in v.dims]
        roll = self.rng.random()
        if same is not None and roll < 0.5:
            return same
        return self.names.weight([] if roll < 0.7 else known, v.dtype)

    # ---- growing ---------------------------------------------------------------------------------

    def add(
        self,
        op: str,
        operands: Sequence[Value | None],
        like: Value,
        *,
        keep: bool = True,
        **attrs: Any,
    ) -> Value:
        """Adds a node with one result, which is exact if its operands are."""
        out = replace(
            like,
            name=self.names.new(),
            exact=like.exact and all(v is None or v.exact for v in operands),
        )
        inputs = ["" if v is None else v.name for v in operands]
        self.nodes.append(
            helper.make_node(op, inputs, [out.name], name=self.names.new("n"), **attrs)
        )
        if keep:
            self.values.append(out)
        return out

    def several(
        self, op: str, operands: Sequence[Value | None], like: Sequence[Value], **attrs: Any
    ) -> list[Value]:
        """Adds a node with several results."""
        outs = [replace(v, name=self.names.new()) for v in like]
        inputs = ["" if v is None else v.name for v in operands]
        node = helper.make_node(
            op, inputs, [v.name for v in outs], name=self.names.new("n"), **attrs
        )
        self.nodes.append(node)
        self.values += outs
        return outs

    def ints(self, *numbers: int) -> Value:
        return self.names.constant(np.array(numbers, np.int64))

    def bounded(self, v: Value) -> Value:
        """Small again, and a multiple of a half where it was one."""
        low, high = (
            self.names.constant(np.array(b, helper.tensor_dtype_to_np_dtype(v.dtype)))
            for b in (-4, 4)
        )
        return self.add("Clip", [v, low, high], v)

    def again(self) -> None:
        """Repeats an earlier node, so that there are equal computations to merge."""
        plain = [
            n
            for n in self.nodes
            if len(n.output) == 1 and not any(a.HasField("g") for a in n.attribute)
        ]
        if plain:
            node = self.rng.choice(plain)
            known = next((v for v in self.values if v.name == node.output[0]), None)
            if known is not None:
                copy = NodeProto()
                copy.CopyFrom(node)
                copy.name, copy.output[0] = self.names.new("n"), self.names.new()
                self.nodes.append(copy)
                self.values.append(replace(known, name=copy.output[0]))
