"""Products of a derivative and a vector: J v of the Jacobian, H v of the Hessian."""

from __future__ import annotations

from onnxgrad.errors import InputError
from onnxgrad.grad.derivatives.derivative import (
    Derivative,
    depending_on,
    drop_input,
    drop_outputs,
    drop_parts,
    renamed_inputs,
    with_target,
)
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.finish import drop_constants, simplify
from onnxgrad.grad.prepare import check_names
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.program import Program

# ---- J v, forward mode: the vjp of the vjp in its seed -------------------------------------------
#
# The vjp J'u is linear in u, so its own vjp with respect to u is the map v -> J v (Christianson
# 1992; the "double backward trick"). Afterwards, nothing reads the values of the first vjp that
# depend on u, and they are removed. A shape that is still taken from u is taken from the target.


def tangents(
    program: Program, wrt: Wrt, target: Target, stop: Stop = None, names: str = "{}_tangent"
) -> Derivative:
    """Implements `jvp` on a Program, which is changed or replaced."""
    check_names(names)
    program, target, parts = with_target(program, target)
    outputs, original = len(program.main.outputs), set(program.main.bindings)
    weights = set(program.main.initializers)
    backward = differentiate(
        program, wrt, target, adjoint="input", simplify=False, names="{}_adjoint", stop=stop
    )
    made = pushed_forward(backward, outputs, names)
    block = made.program.main
    drop_parts(block, parts)
    simplify(made.program, [v for v in block.vars() if v.name in made.tangents], original)
    drop_constants(block, weights)
    return made


def pushed_forward(backward: Gradient, outputs: int, names: str) -> Derivative:
    """Returns J v, formed from the program of J'u, in which u is an input and the outputs from
    number `outputs` on are the adjoints. Both are removed. The result is not simplified.
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
    given = {value: values[forward.seeds[a]] for value, a in backward.adjoints.items()}
    inputs = renamed_inputs(block, given, names)
    results = {}
    for result, seed in backward.seeds.items():
        made = values[forward.adjoints[seed]]
        made.rename(program.names.fresh(names.format(result)))
        results[result] = made.name
    return Derivative(
        program, "jvp", tuple(results), results, inputs, notes=backward.notes, stops=backward.stops
    )


# ---- H v: the gradient of <g, v>, where g is the gradient ----------------------------------------
#
# H is the Jacobian of g. It is symmetric where the target is twice continuously differentiable, so
# H v = d<g, v>/dx. This is reverse mode over reverse mode: it costs one more backward pass and
# needs no matrix (Pearlmutter, "Fast exact multiplication by the Hessian", 1994).


def hessian_products(
    program: Program,
    wrt: Wrt,
    target: Target,
    stop: Stop = None,
    names: str = "{}_hvp",
    tangents: str = "{}_tangent",
) -> Derivative:
    """Implements `hessian_vector_product` on a Program, which is changed or replaced."""
    check_names(names)
    check_names(tangents)
    first = differentiate(program, wrt, target, simplify=False, names="{}_grad", stop=stop)
    gradients = dict(first.adjoints)
    _check_independent(first)
    second = differentiate(
        first.program,
        list(gradients),
        list(gradients.values()),
        adjoint="input",
        names=names,
        stop=first.stops or None,
    )
    program = second.program
    values = {v.name: v for v in program.main.vars()}
    given = {value: values[second.seeds[gradient]] for value, gradient in gradients.items()}
    inputs = renamed_inputs(program.main, given, tangents)
    results, notes = dict(second.adjoints), (*first.notes, *second.notes)
    targets = tuple(gradients.values())
    return Derivative(program, "hvp", targets, results, inputs, notes=notes, stops=first.stops)


def _check_independent(first: Gradient) -> None:
    """Raises InputError if a value depends on another one: the formulas of the gradient read it,
    and would move with it.
    """
    block = first.program.main
    given = {v.name: v for v in block.vars() if v.name in first.adjoints}
    for name, v in given.items():
        others = [other for other in given.values() if other is not v]
        if v.definition in depending_on(block, others) and name not in first.stops:
            raise InputError(
                f"{name} depends on other values of wrt: form the product by one of them at a time,"
                f" or stop at {name}"
            )
