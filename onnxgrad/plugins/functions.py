"""The plug-ins of this package as Python functions. Their keywords come from declarations, as in
`onnxgrad.functions`; `functions.pyi` is written by scripts/make_stubs.py.
"""

from __future__ import annotations

import logging
from typing import Any

from onnxgrad.ir.load import ModelLike, SameType, to_kind_of
from onnxgrad.jobs.gradients import derive
from onnxgrad.jobs.groups import Limits
from onnxgrad.jobs.hooks import with_room
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.plugins.casadi import CasadiOptions
from onnxgrad.plugins.function_gradient import FunctionGradientOptions
from onnxgrad.plugins.place import driver
from onnxgrad.plugins.place.declaration import PlaceOptions
from onnxgrad.plugins.place.driver import PlacedModel

_log = logging.getLogger("onnxgrad")


@from_keywords(PlaceOptions)
def place(
    model: ModelLike, *, options: PlaceOptions, report: bool = False
) -> SameType | PlacedModel:
    """Returns the model with a device marked on every node, for onnxruntime, in the type you passed
    in.

    `device` are rules "DEVICE=PATTERN,PATTERN" by names or operators of nodes; the first that
    matches decides, else the mark in the model, else `default`. With `report=True` returns a
    `PlacedModel`: that model and its placement, with the copies between devices and the session
    option that onnxruntime needs. Raises InputError for a rule that matches nothing.

    >>> placed = onnxgrad.place("models/training/mlp.onnx", "cuda=op:Gemm", report=True)
    >>> dict(placed.placement.by_device), placed.placement.option["value"]
    ({'cuda': 3, 'cpu': 9}, 'cuda(=cuda);cpu(=cpu)')
    """
    found = driver.place(model, options, with_room(model))
    result = to_kind_of(found.model, model)
    return PlacedModel(result, found.placement) if report else result


@from_keywords(CasadiOptions)
def casadi_derivative(model: ModelLike, *, options: CasadiOptions) -> SameType:
    """Returns the derivative of a model f.onnx that CasADi reads from the file <kind>_f.onnx beside
    it.

    "adj": reverse mode, with an input `adj_<output>` per output and an output `adj_<input>` per
    input, for as many directions as the dimension nadj has. "fwd": forward mode, `fwd_<input>` to
    `fwd_<output>`, nfwd. Applied to such a derivative it returns the next one: adj_f.onnx with
    "fwd" becomes fwd_adj_f.onnx, which exact Hessians need; "adj" adds `adj2_<input>`. An r x c
    matrix has seeds of r x (c nadj). A tensor of rank 1 is a column, of rank 3 and more a column of
    all its elements.

    `wrt`: inputs, by default all floating-point ones; CasADi treats the others as constants.
    `target`: outputs, likewise; CasADi must request these alone. The result has the type of
    `model`. Raises InputError as `gradient` does, for a value of unknown rank, and if a name that
    CasADi requests is taken.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... f (double[3] x) => (double[3] y) { y = Tanh (x) }''')
    >>> adjoint = onnxgrad.casadi_derivative(model, "adj")
    >>> [v.name for v in adjoint.graph.input], [v.name for v in adjoint.graph.output]
    (['x', 'adj_y'], ['adj_x'])
    """
    return _formed(model, options)


@from_keywords(FunctionGradientOptions)
def function_gradient(model: ModelLike, *, options: FunctionGradientOptions) -> SameType:
    """Returns the model with one more function: for `f(x, ...) -> (y, ...)`, called `name` or
    `domain::name`, `f_grad(x, ..., y_grad, ...) -> (x_grad, ...)`, by every floating-point operand
    and result. The result has the type of `model`.

    Types and ranks are those of the calls; sizes are open. Raises InputError if no function or more
    than one has that name, and for a function that nothing calls, with calls of several ranks, or
    with attributes.
    """
    return _formed(model, options)


def _formed(model: ModelLike, options: Limits) -> Any:
    """Returns the model with a derivative, in the type you passed in, and logs the notes."""
    found = derive(model, options, with_room(model)).found
    for note in found.notes:
        _log.info(note)
    return to_kind_of(found.program, model)
