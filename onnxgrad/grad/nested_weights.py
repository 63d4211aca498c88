"""Weights that live inside If, Loop and Scan: moved to the main graph, where an adjoint of theirs can be returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from onnx import TensorProto

from onnxgrad.ir import attributes
from onnxgrad.ir.block import Var
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.passes.base import nested


def hoist_weights(program: Program, names: Iterable[str] | None = None) -> None:
    """Make the floating-point initializers and Constants of nested graphs initializers of the main graph.

    Those called by one of `names`, or all with at least one axis. A name that another value shares gets a suffix: what
    two branches call `w` are two weights.
    """
    wanted = None if names is None else set(names)
    inner = [v for block in nested(program.main) for v in block.vars() if _is_weight(v)]
    chosen = [v for v in inner if (v.shape != () if wanted is None else v.name in wanted)]
    if not chosen:
        return
    shared = Counter(v.name for block in program.blocks() for v in block.vars())
    for v in chosen:
        tensor = TensorProto()
        tensor.CopyFrom(_tensor(v))
        tensor.name = program.fresh(v.name) if shared[v.name] > 1 else v.name
        block, definition = v.block, v.definition
        block.replace(v, program.main.add_initializer(tensor))
        if definition is None:
            block.remove_initializer(v)
        else:
            block.remove(definition)


def _is_weight(v: Var) -> bool:
    return v.is_constant and not v.parameter and v.dtype in FLOAT_DTYPES and isinstance(_tensor(v), TensorProto)


def _tensor(v: Var) -> Any:
    return v.initializer if v.definition is None else attributes.constant_value(v.definition.attrs)
