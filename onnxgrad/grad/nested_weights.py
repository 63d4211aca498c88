"""Weights that live inside If, Loop and Scan: moved to the main graph, where an adjoint of
theirs can be returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from onnx import SparseTensorProto, TensorProto

from onnxgrad.ir import attributes
from onnxgrad.ir.clone import add_sparse, sparse_tensors
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import nested


def nested_constants(program: Program) -> list[Var]:
    """The floating-point initializers and Constants of nested graphs."""
    return [v for block in nested(program.main) for v in block.vars() if is_float_constant(v)]


def hoist(program: Program, chosen: Collection[Var]) -> None:
    """Make these `nested_constants`, or Constants of the main graph, initializers of the main
    graph. A name that another value shares gets a suffix: what two branches call `w` are two
    weights.
    """
    if not chosen:
        return
    shared = Counter(v.name for block in program.blocks() for v in block.vars())
    for v in chosen:
        tensor, block, definition = _tensor(v), v.block, v.definition
        name = program.names.fresh(v.name) if shared[v.name] > 1 else v.name
        if isinstance(tensor, SparseTensorProto):
            if definition is None:  # it stays, unread, under another name
                v.rename(program.names.fresh(name))
            block.replace(v, add_sparse(program.main, tensor, name))
        else:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = name
            block.replace(v, program.main.add_initializer(copy))
            if definition is None:
                block.remove_initializer(v)
        if definition is not None:
            block.remove(definition)


def is_float_constant(v: Var) -> bool:
    """Whether the file holds it as a floating-point tensor, dense or sparse."""
    kinds = (TensorProto, SparseTensorProto)
    return not v.is_input and v.dtype in FLOAT_DTYPES and isinstance(_tensor(v), kinds)


def _tensor(v: Var) -> Any:
    """The tensor that the file holds for a constant, None for any other value."""
    if v.definition is None:  # a sparse one that was hoisted is still there
        return (
            v.initializer
            if v.initializer is not None or not v.use_count
            else dict(sparse_tensors(v.block)).get(v)
        )
    if not v.is_constant:
        return None
    attrs = v.definition.attrs
    return attrs["sparse_value"] if "sparse_value" in attrs else attributes.constant_value(attrs)
