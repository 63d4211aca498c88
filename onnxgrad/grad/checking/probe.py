"""The model that differences are taken of: each named value moved by an input of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.checking.vectors import moved_by
from onnxgrad.grad.opset.raising import OPSET
from onnxgrad.grad.wrt import Wrt, hoist_requested
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var


@dataclass(frozen=True)
class Probe:
    """The model with `x + delta` for each named value x, and a constant for each at which gradients
    stop.

    deltas: the input that moves each named value. held: the input that readers of each value take
    for it at which gradients stop. outputs: what the model calls each target, moved if it is named
    too, held if gradients stop there.
    """

    model: ModelProto
    deltas: dict[str, str]
    held: dict[str, str]
    outputs: dict[str, str]


def probe_of(
    source: ModelProto,
    wrt: Wrt,
    names: Sequence[str],
    targets: Sequence[str],
    stops: Sequence[str] = (),
) -> Probe:
    """The probe that moves the values `names`. Raises InputError for one that a nested graph
    returns.
    """
    program = load(source)
    # of a model that holds operators of other domains alone
    program.opsets.setdefault("", OPSET)
    hoist_requested(program, wrt)
    block = program.main
    values = {v.name: v for v in block.vars()}
    read = dict(values)  # what readers read
    with emitting(block):
        for name in stops:
            read[name] = block.add_input(program.names.fresh(f"{name}_held"), values[name].type)
            _read_instead(values[name], read[name])
        held = {name: read[name].name for name in stops}
        deltas: dict[str, str] = {}
        for name in names:
            delta = block.add_input(program.names.fresh(f"{name}_delta"), values[name].type)
            users = list(read[name].users)
            moved = moved_by(read[name], delta)
            _read_instead(read[name], moved, users)
            deltas[name], read[name] = delta.name, moved
            if any(
                values[name] in nested.outputs for b in block.walk() for nested in b.blocks.values()
            ):
                raise InputError(
                    f"'{name}' is returned by a nested graph: it cannot be moved to "
                    "take differences"
                )
        for name in [n for n in targets if n in stops and n not in names]:
            read[name] = op.Identity(read[name])
    outputs = {t: read[t].name for t in targets}
    proto = to_proto(program)
    del proto.graph.output[:]
    for name in dict.fromkeys([*outputs.values(), *names]):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return Probe(proto, deltas, held, outputs)


def _read_instead(old: Var, new: Var, users: Iterable[Binding] | None = None) -> None:
    for user in list(old.users) if users is None else users:
        for place in user.places(old):
            user.block.set_operand(user, place, new)
