"""Forward mode: the vjp of the vjp in its seed.

The vjp J'u is linear in u, so its own vjp with respect to u is the map v -> J v (Christianson 1992;
the "double backward trick"). What the first vjp computed for u's sake is unused afterwards and goes
away; a shape that is still taken from u is the target's, so the target stands in for it.
"""

from __future__ import annotations

from typing import Any

from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.products import (
    Products,
    check_names,
    drop_input,
    drop_outputs,
    drop_parts,
    with_target,
)
from onnxgrad.grad.request import Wrt
from onnxgrad.grad.simplify import drop_constants, simplify
from onnxgrad.grad.slices import Target
from onnxgrad.ir.interop.given_back import check_room, like
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.program import Program
from onnxgrad.options import known_keywords


@known_keywords
def jvp(
    model: ModelLike, wrt: Wrt = None, target: Target = None, *, names: str = "{}_tangent"
) -> Any:
    """The model with one more input per value in `wrt`, its tangent, and one more output per
    target: J v.

    `wrt` and `target` as for `gradient`; targets may have any shape. Tangents are named by `names`.
    The result is of the kind given. Raises InputError as `gradient` does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Tanh (x) }''')
    >>> forward = onnxgrad.jvp(model)
    >>> [v.name for v in forward.graph.input], [v.name for v in forward.graph.output]
    (['x', 'x_tangent'], ['y', 'y_tangent'])
    """
    program = load_own(model)
    check_room(program, model)
    return like(tangents(program, wrt, target, names).program, model)


def tangents(program: Program, wrt: Wrt, target: Target, names: str = "{}_tangent") -> Products:
    """`jvp` on a Program, which is changed or replaced."""
    check_names(names)
    program, target, parts = with_target(program, target)
    outputs, original = len(program.main.outputs), set(program.main.bindings)
    weights = set(program.main.initializers)
    backward = differentiate(
        program, wrt, target, adjoint="input", simplify=False, names="{}_adjoint"
    )
    made = pushed_forward(backward, outputs, names)
    block = made.program.main
    drop_parts(block, parts)
    simplify(made.program, [v for v in block.vars() if v.name in made.tangents], original)
    drop_constants(block, weights)
    return made


def pushed_forward(backward: Gradient, outputs: int, names: str) -> Products:
    """J v, from J'u with u as an input, whose adjoints are the outputs from number `outputs` on;
    both go. Not simplified.
    """
    forward = differentiate(
        backward.program,
        list(backward.seeds.values()),
        list(backward.adjoints.values()),
        adjoint="input",
        simplify=False,
        names="{}_tangent",
    )
    program = forward.program
    block = program.main
    values = {v.name: v for v in block.vars()}
    drop_outputs(block, outputs, len(backward.adjoints))
    for result, seed in backward.seeds.items():
        drop_input(block, values[seed], values[result])
    block.remove_unused()
    inputs = {}
    for value, adjoint in backward.adjoints.items():
        given = values[forward.seeds[adjoint]]
        moved = block.add_input(program.names.fresh(names.format(value)), given.type)
        drop_input(block, given, moved)
        inputs[value] = moved.name
    results = {}
    for result, seed in backward.seeds.items():
        made = values[forward.adjoints[seed]]
        made.rename(program.names.fresh(names.format(result)))
        results[result] = made.name
    return Products(program, "jvp", tuple(results), results, inputs, notes=backward.notes)
