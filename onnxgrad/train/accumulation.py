"""Gradients added up over micro-batches, in two graphs: one adds, the other updates.

Whoever runs a step follows `next` in both: each micro-batch goes through train.onnx, which adds its
gradients to states that begin with zeros; after each `accumulate`-th, update.onnx makes new weights
of their mean, and zeros again. So a micro-batch costs no update, and the loss curve is that of one
batch of them all, for a loss that is a mean over examples and micro-batches of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.train.manifest import Fed
from onnxgrad.train.norms import in_dtype, widest
from onnxgrad.train.plan import Plan
from onnxgrad.train.update import Scale, State, Update, add_state, emit_update, fed_of, returned


def add_up(
    block: BindingBlock, parameters: Sequence[Var], adjoints: Sequence[Var], initial: State
) -> list[Fed]:
    """Each adjoint, in float32 or float64, added to a state. What that is at first stands in
    `initial` afterwards.
    """
    fed = []
    for p, g in zip(parameters, adjoints, strict=True):
        wide = in_dtype(g, widest([g]))
        value = np.zeros(initial[p.name].shape, numpy_dtype(wide.dtype))
        v = add_state(block, f"{p.name}.accumulated", value)
        initial[v.name] = value
        following = returned(block, v + wide, f"{v.name}.new")
        fed.append(replace(fed_of(v, "accumulated", following, p.name), slot="accumulated"))
    return fed


def update_program(
    train: Program, plan: Plan, accumulated: Sequence[Fed], scale: Scale, initial: State
) -> tuple[Program, Update]:
    """The graph of the update alone: weights, their accumulated gradients and states in."""
    proto = ModelProto(ir_version=train.ir_version, graph=GraphProto(name="update"))
    proto.opset_import.add(version=train.opset)
    program = load(proto)
    block, values = program.main, {v.name: v for v in train.main.vars()}
    program.names.update(train.names)  # a name means one value in both graphs
    weights = [fed.of or "" for fed in accumulated]
    parameters = [block.add_input(name, values[name].type) for name in weights]
    sums = [block.add_input(fed.name, values[fed.name].type) for fed in accumulated]
    own = {slot: block.add_input(v.name, v.type) for slot, v in scale.items()}
    with emitting(block, share=True, made_by=plan.optimizer.name):
        made = emit_update(block, plan, parameters, sums, own, initial)
        for v, fed in zip(sums, accumulated, strict=True):
            zeros = op.ConstantOfShape(np.array(v.shape, np.int64), value=_zero(v))
            returned(block, zeros, fed.next or "", exactly=True)
    block.remove_unused()
    return program, made


def _zero(v: Var) -> TensorProto:
    tensor = TensorProto(data_type=v.dtype, dims=[1])
    tensor.raw_data = np.zeros(1, numpy_dtype(v.dtype)).tobytes()
    return tensor
