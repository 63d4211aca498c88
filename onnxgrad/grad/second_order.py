"""Products with the Hessian: the gradient of <g, v>, where g is the gradient.

H is the Jacobian of g, and symmetric where the target is twice continuously differentiable, so that
H v = d<g, v>/dx: reverse mode over reverse mode, at the cost of one more backward pass and without
a matrix (Pearlmutter, "Fast exact multiplication by the Hessian", 1994).
"""

from __future__ import annotations

from typing import Any

from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.products import Products, check_names, drop_input
from onnxgrad.grad.request import Wrt
from onnxgrad.grad.slices import Target
from onnxgrad.grad.stops import Stop
from onnxgrad.ir.interop.given_back import check_room, like
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.program import Program
from onnxgrad.options import known_keywords


@known_keywords
def hessian_vector_product(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    stop: Stop = None,
    names: str = "{}_hvp",
    tangents: str = "{}_tangent",
) -> Any:
    """The model with one more input per value in `wrt`, v in its shape, and two more outputs: its
    gradient, and its part of H v. H is the Hessian of the target by all of `wrt` together.

    `wrt`, `target`, a scalar, and `stop` as for `gradient`. Gradients are named "{}_grad", products
    by `names`, inputs by `tangents`. The result is of the kind given. Where a slope jumps (Relu at
    0, a maximum at ties) there is no second derivative; of what is linear on both sides H is 0.
    Raises InputError as `gradient` does.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float y) { c = Mul (x, x)  d = Mul (c, x)
    ...   y = ReduceSum <keepdims = 0> (d) }''')
    >>> product = onnxgrad.hessian_vector_product(model)
    >>> [v.name for v in product.graph.input], [v.name for v in product.graph.output]
    (['x', 'x_tangent'], ['y', 'x_grad', 'x_hvp'])
    """
    program = load_own(model)
    check_room(program, model)
    return like(hessian_products(program, wrt, target, stop, names, tangents).program, model)


def hessian_products(
    program: Program,
    wrt: Wrt,
    target: Target,
    stop: Stop = None,
    names: str = "{}_hvp",
    tangents: str = "{}_tangent",
) -> Products:
    """`hessian_vector_product` on a Program, which is changed or replaced."""
    check_names(names)
    check_names(tangents)
    first = differentiate(program, wrt, target, simplify=False, names="{}_grad", stop=stop)
    gradients = dict(first.adjoints)
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
    inputs = {}
    for value, gradient in gradients.items():
        given = values[second.seeds[gradient]]
        moved = program.main.add_input(program.names.fresh(tangents.format(value)), given.type)
        drop_input(program.main, given, moved)
        inputs[value] = moved.name
    results, notes = dict(second.adjoints), (*first.notes, *second.notes)
    return Products(program, "hvp", tuple(gradients.values()), results, inputs, notes=notes)
