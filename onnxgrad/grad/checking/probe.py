"""The model that differences are taken of: each named value moved by an input of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.grad.checking.vectors import moved_by
from onnxgrad.grad.request import Wrt, hoist_requested
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto


@dataclass(frozen=True)
class Probe:
    """The model with `x + delta` for each named value x.

    deltas: the input that moves each named value. outputs: what the model calls each target, moved if it is named too.
    """

    model: ModelProto
    deltas: dict[str, str]
    outputs: dict[str, str]


def probe_of(source: ModelProto, wrt: Wrt, names: Sequence[str], targets: Sequence[str]) -> Probe:
    """The probe that moves the values `names`. Raises InputError for one that a nested graph returns."""
    program = load(source)
    hoist_requested(program, wrt)
    block = program.main
    values = {v.name: v for v in block.vars()}
    deltas: dict[str, str] = {}
    outputs = {t: t for t in targets}
    with emitting(block):
        for name in names:
            v = values[name]
            delta = block.add_input(program.names.fresh(f"{name}_delta"), v.type)
            users = list(v.users)
            moved = moved_by(v, delta)
            for user in users:
                for i, operand in enumerate(user.inputs):
                    if operand is v:
                        block.set_operand(user, i, moved)
            deltas[name] = delta.name
            if any(v in nested.outputs for b in block.walk() for nested in b.blocks.values()):
                raise InputError(f"'{name}' is returned by a nested graph: it cannot be moved to take differences")
            if name in targets:
                outputs[name] = moved.name
    proto = to_proto(program)
    del proto.graph.output[:]
    for name in dict.fromkeys([*outputs.values(), *names]):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return Probe(proto, deltas, outputs)
