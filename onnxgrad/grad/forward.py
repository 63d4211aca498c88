"""Forward mode: the vjp of the vjp in its seed.

The vjp J'u is linear in u, so its own vjp with respect to u is the map v -> J v (Christianson 1992;
the "double backward trick"). What the first vjp computed for u's sake is unused afterwards and goes
away; a shape that is still taken from u is the target's, so the target stands in for it.
"""

from __future__ import annotations

from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.opset import raise_opset
from onnxgrad.grad.request import Target, Wrt
from onnxgrad.grad.simplify import simplify
from onnxgrad.ir.interop.given_back import check_room, like
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.names import rename
from onnxgrad.ir.program import Program


def jvp(
    model: ModelLike, wrt: Wrt = None, target: Target = None, *, names: str = "{}_tangent"
) -> Any:
    """The model with one more input per value in `wrt`, its tangent, and one more output per
    target: J v.

    `wrt` and `target` as for `gradient`; targets may have any shape. Tangents are named by `names`.
    The result is of the kind given. Raises InputError as `gradient` does.
    """
    program = load_own(model)
    check_room(program, model)
    return like(_tangents(program, wrt, target, names), model)


def _tangents(program: Program, wrt: Wrt, target: Target, names: str) -> Program:
    if names.count("{}") != 1:
        raise InputError(f"names must hold {{}} once, for the value's name; it is {names!r}")
    program, _ = raise_opset(program)
    outputs, original = len(program.main.outputs), set(program.main.bindings)
    backward = differentiate(program, wrt, target, seed="input", simplify=False, names="{}_adjoint")
    forward = differentiate(
        backward.program,
        list(backward.seeds.values()),
        list(backward.adjoints.values()),
        seed="input",
        simplify=False,
        names="{}_tangent",
    )
    program = forward.program
    block = program.main
    values = {v.name: v for v in block.vars()}
    for v in block.outputs[outputs : outputs + len(backward.adjoints)]:
        v.returned -= 1
    del block.outputs[outputs : outputs + len(backward.adjoints)]
    block.touch()
    for result, seed in backward.seeds.items():
        block.replace(values[seed], values[result])
        block.inputs.remove(values[seed])
    block.remove_unused()
    for value, adjoint in backward.adjoints.items():
        given = values[forward.seeds[adjoint]]
        block.replace(given, block.add_input(program.names.fresh(names.format(value)), given.type))
        block.inputs.remove(given)
    for result, seed in backward.seeds.items():
        rename(values[forward.adjoints[seed]], program.names.fresh(names.format(result)))
    simplify(program, [values[v] for v in backward.adjoints if v in values], original)
    return program
