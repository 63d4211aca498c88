"""What the values of somebody's training graph are for, where no manifest says it: the loss, the
learning rate, the number of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.train.preview_training import DOMAIN

_OPTIMIZERS = frozenset({"Adam", "Adagrad", "Momentum"})


@dataclass(frozen=True)
class Roles:
    """Names of values. rate, counts: None where the graph takes none from outside."""

    loss: str
    rate: str | None = None
    counts: str | None = None  # updates made before, the T of the standard's optimisers


def roles_of(
    graph: GraphProto,
    algorithm: GraphProto,
    updates: Collection[str],
    loss: str | None,
    rate: str | None,
) -> Roles:
    """What Gradient and the standard's optimisers say of a training graph, and who asks.

    updates: the variables and their new values. Raises InputError where nothing says which the loss
    is, and for a learning rate that is none.
    """
    inputs = {v.name for v in graph.input}
    held = {t.name: t for t in graph.initializer}
    optimizers = [n for n in graph.node if n.domain == DOMAIN and n.op_type in _OPTIMIZERS]
    if rate is None:
        found = {n.input[0] for n in optimizers if n.input[0] not in updates}
        rate = found.pop() if len(found) == 1 and found <= inputs | held.keys() else None
    elif rate in updates or rate not in inputs | held.keys():
        raise InputError(
            f"the learning rate '{rate}' is no input of the training graph, nor an initializer "
            "that stays as it is"
        )
    if rate in held and int(np.prod(held[rate].dims)) != 1:
        raise InputError(f"the learning rate '{rate}' has more than one element")
    counts = {n.input[1] for n in optimizers} & (inputs - held.keys())
    return Roles(
        loss or _loss(graph.node, algorithm, updates),
        rate,
        counts.pop() if len(counts) == 1 else None,
    )


def _loss(nodes: Sequence[NodeProto], algorithm: GraphProto, updates: Collection[str]) -> str:
    of: set[str] = {
        helper.get_attribute_value(a).decode()
        for n in nodes
        if n.domain == DOMAIN and n.op_type == "Gradient"
        for a in n.attribute
        if a.name == "y"
    }
    if len(of) == 1:
        return next(iter(of))
    scalars: list[str] = [
        v.name for v in algorithm.output if v.name not in updates and _is_scalar(v)
    ]
    if len(scalars) == 1:
        return scalars[0]
    listed = ", ".join(sorted(of) or [v.name for v in algorithm.output if v.name not in updates])
    raise InputError(
        f"nothing says which value of the training graph is the loss ({listed or 'no output'}): "
        "name it with loss="
    )


def _is_scalar(v: object) -> bool:
    kind = v.type.tensor_type  # type: ignore[attr-defined]
    sizes = [d.dim_value for d in kind.shape.dim]
    return kind.elem_type in FLOAT_DTYPES and all(size == 1 for size in sizes)


def connect_rate(program: Program, name: str) -> tuple[Var, float | None]:
    """The learning rate as a scalar input, and what the file has for it."""
    block = program.main
    held = block.initializers.get(name)
    if held is None:
        return _scalar(block, _input(block, name), "learning_rate"), None
    tensor = held.initializer
    default = None if tensor is None else float(program.array(tensor).reshape(-1)[0])
    block.ask_for(held)
    return _scalar(block, held, "learning_rate"), default


def connect_step(program: Program, name: str) -> Var:
    """The number of the step, from 1 on, as an input from which the count of former ones comes."""
    block = program.main
    counts = _input(block, name)
    step = block.add_input(program.names.fresh("step"), TensorType(TensorProto.INT64, ()))
    with emitting(block):
        before = op.Cast(step - 1, to=counts.dtype)
        sizes = np.ones(len(counts.shape or ()), np.int64)
        block.replace(counts, op.Reshape(before, sizes) if len(sizes) else before)
    block.inputs = [v for v in block.inputs if v is not counts]
    return step


def _input(block: BindingBlock, name: str) -> Var:
    return next(v for v in block.inputs if v.name == name)


def _scalar(block: BindingBlock, v: Var, hint: str) -> Var:
    """The input itself, or a scalar one in its place where it has axes."""
    if v.shape == ():
        return v
    scalar = block.add_input(block.program.names.fresh(hint), TensorType(v.dtype, ()))
    with emitting(block):
        block.replace(v, op.Reshape(scalar, np.ones(len(v.shape or ()), np.int64)))
    block.inputs = [i for i in block.inputs if i is not v]
    return scalar


def scalar_loss(block: BindingBlock, name: str) -> Var:
    """The loss as a scalar. Raises InputError for what is none."""
    found = next((v for v in block.vars() if v.name == name), None)
    if found is None:
        raise InputError(f"the loss '{name}' is no value of the training graph")
    if found.shape == ():
        return found
    if found.dtype not in FLOAT_DTYPES or any(n != 1 for n in found.shape or ()):
        raise InputError(f"the loss '{name}' is {found.type}, not a number")
    with emitting(block):
        return op.Reshape(found, np.zeros(0, np.int64))
