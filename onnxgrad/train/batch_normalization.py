"""BatchNormalization in training: the batch's statistics normalise, the running ones are a state.

    mean = mean momentum + m (1 - momentum),  m the mean over the batch and all places
    var  = var  momentum + v (1 - momentum),  v = sum (x - m)^2 / (n - 1)

with ONNX's momentum, which is 1 - PyTorch's, and PyTorch's unbiased variance. The operator itself
updates running statistics by the variance of the population (n), in the standard and in onnxruntime
on the CPU, so these results are not read. A channel with one element has no variance: v is then 0,
while PyTorch raises an error. Source: Ioffe and Szegedy, 2015; torch.nn.BatchNorm2d.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, element_count
from onnxgrad.ir.var import Var
from onnxgrad.train.update.emission import ask_for, returned

# slots of scale, mean and variance among the operands
_SCALE, _MEAN, _VARIANCE = 1, 3, 4
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True)
class Running:
    """A running statistic: its names in the file and as an input, the output with its next value,
    and its value in the file.
    """

    name: str
    next: str
    initial: Array


def in_training(b: Binding) -> bool:
    """Whether the file itself normalises by the statistics of the batch."""
    if b.version >= 14:
        return bool(b.attr("training_mode"))
    # up to opset 13 the number of results is the switch
    return sum(v is not None for v in b.outputs) > 1


def freeze(b: Binding) -> None:
    """Switches to inference: normalises by the running statistics."""
    if in_training(b):
        for out, running in zip(b.outputs[1:], b.inputs[_MEAN:], strict=False):
            if out is not None and running is not None:
                b.block.replace(out, running)
        while len(b.outputs) > 1:
            b.drop_result(len(b.outputs) - 1)
        if b.version >= 14:
            b.set_attribute("training_mode", 0)


def train(program: Program, bindings: Sequence[Binding]) -> list[Running]:
    """Switches these bindings of the main graph to training mode. Each running statistic becomes an
    input, and its next value an output.

    A module that is called twice updates its statistics twice, in the graph's order. Raises
    InputError if a statistic is not a weight of the file, or has other uses.
    """
    block = program.main
    roots = {b: [_root(b, i) for i in (_MEAN, _VARIANCE)] for b in bindings}
    _refuse_merged(roots)
    values = {v.name: _value(v) for found in roots.values() for v in found}
    by_binding = {b: [v.name for v in found] for b, found in roots.items()}
    now: dict[str, Var] = {}
    ask_for(block, list(values))
    inputs = {v.name: v for v in block.inputs}
    for b in bindings:
        with emitting(block, sources=(b,), made_by="batch_norm"):
            _use_batch(b, [inputs[name] for name in by_binding[b]])
            found = _statistics(b)
            for i, (name, batch) in enumerate(zip(by_binding[b], found, strict=True), 1):
                now[name] = _moved(now.get(name, inputs[name]), batch, b)
                block.replace(b.outputs[i] or now[name], now[name])
    return [Running(n, returned(block, now[n], f"{n}.new"), values[n]) for n in values]


def _root(b: Binding, index: int) -> Var:
    """Returns the statistic as stored in the file, behind Identities. Raises InputError if it is
    not stored.
    """
    v = b.operand(index)
    while v is not None and v.definition is not None and v.definition.is_op("Identity"):
        v = v.definition.operand(0)
    if v is None or v.block is not b.block or not (v.initializer is not None or v.is_constant):
        raise InputError(
            f"a running statistic of '{b}' is not in the main graph: leave batch_norm frozen"
        )
    return v


def _value(v: Var) -> Array:
    found = v.const if v.initializer is None else v.block.program.array(v.initializer)
    if found is None:
        raise InputError(f"the running statistic '{v.name}' cannot be read")
    return np.array(found)


def _refuse_merged(roots: Mapping[Binding, Sequence[Var]]) -> None:
    """Raises InputError for a statistic with other readers: a tool may have merged numbers that are
    equal only at the start.
    """
    whose: dict[Var, tuple[object, ...]] = {}
    for b, (mean, variance) in roots.items():
        mine = (*b.inputs[_SCALE:_MEAN], mean, variance)
        for root in (mean, variance):
            if whose.setdefault(root, mine) != mine or mean is variance:
                raise _merged(root, f"shared by several nodes, '{b}' among them")
            for user, i in _reads(root):
                if user not in roots or i < _MEAN:
                    raise _merged(root, f"read by '{user}' as well")


def _merged(v: Var, how: str) -> InputError:
    return InputError(
        f"the running statistic '{v.name}' is {how}: equal numbers were merged into one, which "
        "cannot move apart; export the model in training mode, or leave batch_norm frozen"
    )


def _reads(v: Var) -> Iterable[tuple[Binding, int]]:
    """Yields each binding that reads a value, also through Identities, with the index of the
    operand.
    """
    for user in v.users:
        if user.is_op("Identity"):
            yield from _reads(user.out)
        else:
            yield from ((user, i) for i in user.places(v))


def _use_batch(b: Binding, inputs: Sequence[Var]) -> None:
    """Switches to the operator's training form, which has three results.

    onnxruntime writes the last two results over the operands that they update, even if others read
    these operands. Therefore the operands get their own memory, and readers of the results read the
    statistics computed here instead.
    """
    names = b.block.program.names
    for i, statistic in enumerate(inputs):
        if b.result(1 + i) is None:
            b.block.add_result(b, 1 + i, names.fresh(f"{statistic.name}.own"), statistic.type)
        b.block.set_operand(b, _MEAN + i, op.Neg(statistic))
    b.set_attribute("training_mode", 1)


def _statistics(b: Binding) -> tuple[Var, Var]:
    """Returns mean and unbiased variance of the operand per channel, in the precision of
    the sums.
    """
    x, running = b.inputs[0], b.inputs[_MEAN]
    if x is None or running is None or x.rank is None or x.rank < 2:
        raise InputError(f"the rank of the operand of '{b}' is not known to be 2 or more")
    axes = [0, *range(2, x.rank)]
    dtype = TensorProto.FLOAT if running.dtype in _HALVES else running.dtype
    x = x if x.dtype == dtype else op.Cast(x, to=dtype)
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    total = op.ReduceSum(centred * centred, axes, keepdims=0)
    return op.Squeeze(mean, axes), total / _one_less(x, running, axes)


def _one_less(x: Var, running: Var, axes: Sequence[int]) -> Var | float:
    """Returns n - 1, at least 1."""
    count = element_count(tuple((x.shape or ())[i] for i in axes))
    if count is not None:
        return float(max(count - 1, 1))
    number = op.Div(op.Size(x), op.Size(running))
    return op.Cast(op.Max(op.Sub(number, np.int64(1)), np.int64(1)), to=x.dtype)


def _moved(running: Var, batch: Var, b: Binding) -> Var:
    # the decimal number that was rounded to the attribute's float32
    momentum = float(str(np.float32(b.attr("momentum"))))
    wide = running if running.dtype == batch.dtype else op.Cast(running, to=batch.dtype)
    moved = wide * momentum + batch * (1.0 - momentum)
    return moved if running.dtype == batch.dtype else op.Cast(moved, to=running.dtype)
