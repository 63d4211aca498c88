"""The update of a training step as part of its graph, or as a second graph after micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

from onnxgrad.grad.wrt import hoist, is_float_constant, nested_constants
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.train.integer_weights import least_scale, rounding_scales
from onnxgrad.train.manifest import Fed, Role
from onnxgrad.train.optimizers.base import Moment
from onnxgrad.train.update.clipping import averaged_and_clipped, in_dtype, times, widest
from onnxgrad.train.update.mixed_precision import Master, all_finite, kept
from onnxgrad.train.update.moving_average import WeightUpdate
from onnxgrad.train.update.options import Group, UpdateOptions, members

State = dict[str, Array]
# by the names of `LossScaling.state`; empty without loss scaling
Scale = Mapping[str, Var]


@dataclass(frozen=True)
class Update:
    """The inputs of a graph with an update, and the output with the norm of the gradients."""

    fed: list[Fed]
    norm: str | None


def emit_update(
    block: BindingBlock,
    options: UpdateOptions,
    parameters: Sequence[Var],
    adjoints: Sequence[Var],
    scale: Scale,
    initial: State,
    bounded: Collection[str],
    labels: Var | None = None,
) -> Update:
    """Emits new values of weights and states as outputs of the block, with the inputs that they
    need. First values of the inputs are added to `initial`. bounded: the scales of quantisations,
    which stay positive. labels: the number of labels by which
    sums over micro-batches are divided.
    """
    names = block.program.names
    rate = None
    if options.schedule is None:
        # a rate in float32 costs a float64 model 4e-8
        rate = block.add_input(names.fresh("learning_rate"), TensorType(widest(parameters), ()))
    step = block.add_input(names.fresh("step"), TensorType(TensorProto.INT64, ()))
    number = op.Cast(step, to=TensorProto.DOUBLE)
    if scale:  # skipped updates do not count
        number = number - op.Cast(scale["skipped"], to=TensorProto.DOUBLE)
    learning = options.schedule.emit(step) if options.schedule is not None else rate
    gs, norm, finite = _prepared(options, adjoints, scale, labels)
    group = members(options.groups, [p.name for p in parameters])
    at = Moment(learning, number, op, TensorProto.FLOAT)
    writer = _Writer(block, options, at, finite, initial, bounded)
    fed = [writer.parameter(p, g, group[p.name]) for p, g in zip(parameters, gs, strict=True)]
    name = None if norm is None else returned(block, norm, "gradient_norm")
    fed += writer.states
    fed += _scaling(block, options, scale, finite)
    fed.append(fed_of(step, "step"))
    if rate is not None:
        fed.append(fed_of(rate, "learning_rate"))
    return Update(fed, name)


def _scaling(
    block: BindingBlock, options: UpdateOptions, scale: Scale, finite: Var | None
) -> list[Fed]:
    """Emits the next state of the loss scaling."""
    if options.scaling is None:
        return []
    new = options.scaling.update(scale, finite)
    return [
        replace(fed_of(v, "scaling", returned(block, new[slot], f"{v.name}.new")), slot=slot)
        for slot, v in scale.items()
    ]


def _prepared(
    options: UpdateOptions, adjoints: Sequence[Var], scale: Scale, labels: Var | None
) -> tuple[Sequence[Var], Var | None, Var | None]:
    """Returns the gradients in a wide dtype, unscaled, averaged over micro-batches and clipped;
    their norm; and whether all are finite. The last two are None if the step does not need them.
    """
    gs: list[Var] = [in_dtype(g, widest([g])) for g in adjoints]
    finite = None
    if options.scaling is not None:
        gs = options.scaling.unscaled(gs, scale)
        finite = all_finite(gs)
    mean = None
    if labels is not None:
        mean = in_dtype(1.0 / op.Where(op.Equal(labels, 0.0), 1.0, labels), widest(gs))
    clipped, factor, norm = averaged_and_clipped(
        gs, options, norm=options.norm, scaled=times, mean=mean
    )
    if factor is not None:
        clipped = [times(g, factor) for g in clipped]
    return clipped, norm, finite


@dataclass
class _Writer:
    """Writes the updates of weights one after the other; `states` collects the inputs that they
    need.
    """

    block: BindingBlock
    options: UpdateOptions
    at: Moment
    finite: Var | None
    initial: State
    bounded: Collection[str]

    def __post_init__(self) -> None:
        self.states: list[Fed] = []

    def parameter(self, p: Var, g: Var, group: Group) -> Fed:
        """Makes the new weight and states outputs."""
        start = self.initial[p.name]
        optimizer, averaging = group.optimizer, self.options.average
        if p.dtype not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            optimizer = Master(optimizer)
        least = least_scale(start) if p.name in self.bounded else None
        rule = WeightUpdate(optimizer, group.factor, averaging, least)
        at = replace(self.at, dtype=p.dtype, learning_rate=rule.rate(self.at.learning_rate, op))
        held = {slot: self._state(p, slot, v) for slot, v in optimizer.state(start).items()}
        average = None
        if averaging is not None:
            average = self._state(p, "average", averaging.state(start)["average"])
        new, after, moved = rule.update(p, g, held, average, at, self._kept)
        for slot, v in held.items():
            self._returned(p, slot, v, after[slot], "state")
        if average is not None:
            self._returned(p, "average", average, moved, "average")
        fed = fed_of(p, "parameter", returned(self.block, new, f"{p.name}.new"), gradient=g.name)
        several = len(self.options.groups) > 1
        return replace(fed, group=self.options.groups.index(group) if several else None)

    def _kept(self, new: Var, old: Var) -> Any:
        return new if self.finite is None else kept(self.finite, new, old)

    def _state(self, p: Var, slot: str, value: Array) -> Var:
        v = add_state(self.block, f"{p.name}.{slot}", value)
        self.initial[v.name] = value
        return v

    def _returned(self, p: Var, slot: str, v: Var, new: Var, role: Role) -> None:
        name = returned(self.block, new, f"{v.name}.new")
        self.states.append(replace(fed_of(v, role, name, p.name), slot=slot))


def add_state(block: BindingBlock, name: str, value: Array) -> Var:
    """Returns an input for a state that begins with this value."""
    type_ = TensorType(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    return block.add_input(block.program.names.fresh(name), type_)


def ask_for(block: BindingBlock, names: Sequence[str]) -> None:
    """Makes weights, which may be Constants or in nested blocks, inputs in this order."""
    constants = [v for v in block.vars() if v.definition is not None and is_float_constant(v)]
    inside = [*constants, *nested_constants(block.program)]
    hoist(block.program, [v for v in inside if v.name in names])
    for name in names:
        block.ask_for(block.initializers[name])


def prune(block: BindingBlock, kept: Callable[[Var], object]) -> None:
    """Removes everything that no output needs, and the inputs that are not kept."""
    block.remove_unused()
    block.inputs = [v for v in block.inputs if kept(v)]
    for v in list(block.initializers.values()):
        if not v.use_count and not v.returned and not v.is_input:
            block.remove_initializer(v)
    block.touch()


def returned(block: BindingBlock, v: Var, name: str, *, exactly: bool = False) -> str:
    """Makes a value an output under a name of its own: `exactly` this name, or one like it."""
    name = name if exactly else block.program.names.fresh(name)
    if v.returned or v.definition is None:
        with emitting(block):
            v = op.Identity(v)
    v.rename(name)
    block.add_output(v)
    return name


def fed_of(
    v: Var,
    role: Role,
    following: str | None = None,
    of: str | None = None,
    gradient: str | None = None,
) -> Fed:
    """Returns the manifest's entry of an input."""
    return Fed(v.name, role, numpy_dtype(v.dtype).name, v.shape, following, of, gradient)


def add_up(
    block: BindingBlock,
    parameters: Sequence[Var],
    adjoints: Sequence[Var],
    initial: State,
    labels: Var | None,
) -> list[Fed]:
    """Adds each adjoint, in float32 or float64, to a state, and if micro-batches count by their
    labels also the number of these, by which adjoints are multiplied. First values of the states
    are added to `initial`.
    """
    fed = []
    if labels is not None:
        value = np.zeros((), numpy_dtype(labels.dtype))
        v = add_state(block, "labels.accumulated", value)
        initial[v.name] = value
        fed.append(fed_of(v, "counted", returned(block, v + labels, f"{v.name}.new")))
    for p, g in zip(parameters, adjoints, strict=True):
        wide = in_dtype(g, widest([g]))
        value = np.zeros(initial[p.name].shape, numpy_dtype(wide.dtype))
        v = add_state(block, f"{p.name}.accumulated", value)
        initial[v.name] = value
        wide = wide if labels is None else wide * in_dtype(labels, wide.dtype)
        following = returned(block, v + wide, f"{v.name}.new")
        fed.append(replace(fed_of(v, "accumulated", following, p.name), slot="accumulated"))
    return fed


def update_program(
    train: Program, options: UpdateOptions, accumulated: Sequence[Fed], scale: Scale, initial: State
) -> tuple[Program, Update]:
    """Returns the graph of the update alone, whose inputs are weights, accumulated gradients and
    states.
    """
    proto = ModelProto(ir_version=train.ir_version, graph=GraphProto(name="update"))
    proto.opset_import.add(version=train.opset)
    program = load(proto)
    block, values = program.main, {v.name: v for v in train.main.vars()}
    program.names.update(train.names)  # a name means one value in both graphs
    weights = [fed.of for fed in accumulated if fed.of is not None]
    parameters = [block.add_input(name, values[name].type) for name in weights]
    sums = [block.add_input(fed.name, values[fed.name].type) for fed in accumulated]
    labels = sums[0] if accumulated[0].role == "counted" else None
    own = {slot: block.add_input(v.name, v.type) for slot, v in scale.items()}
    with emitting(block, share=True, made_by=options.optimizer.name):
        gradients = sums if labels is None else sums[1:]
        made = emit_update(
            block, options, parameters, gradients, own, initial, rounding_scales(train), labels
        )
        for v, fed in zip(sums, accumulated, strict=True):
            data = np.zeros(1, numpy_dtype(v.dtype)).tobytes()
            zero = TensorProto(data_type=v.dtype, dims=[1], raw_data=data)
            zeros = op.ConstantOfShape(np.array(v.shape, np.int64), value=zero)
            returned(block, zeros, fed.next or "", exactly=True)
    block.remove_unused()
    return program, made
