"""The gradient rules, one file or folder per family. Importing the package imports all modules, and
each module registers its rules.

How to write a rule
-------------------

Register one formula per operand, in the order of ONNX's schema. `None`, or leaving out trailing
formulas, means that the operand receives no gradient:

>>> from onnxgrad import body, op, vjp, vjp_all, zero
>>> vjp("my::Mul", lambda g, y, a, b: g * b, lambda g, y, a, b: g * a)
>>> def softmax(g, y, x, axis=-1):
...     return (g - op.ReduceSum(g * y, [axis], keepdims=1)) * y
>>> vjp("my::Softmax", softmax)

If the operator has several outputs, `g` and `y` are tuples; `g[i]` is None if no adjoint arrived:

>>> def divmod_dividend(g, y, a, b):
...     return g[0] / b if g[0] is not None else None
>>> vjp("my::DivMod", divmod_dividend, None, many=True)

An operator with any number of operands has one function that returns a list:

>>> vjp_all("my::Sum", lambda g, y, xs: [g for _ in xs])

If the operator is a composition of others, state what it computes. If the derivative is zero
almost everywhere, declare it:

>>> body("my::Square", lambda x, *, scale=1.0: x * x * scale)
>>> zero("my::Floor", "my::Ceil")

Rules for operators with nested blocks are functions `f(binding, g, wanted) -> {value: partial}`
registered by `vjp_blocks`.

`g` is the output's adjoint, `y` the output. Both are tuples if the schema allows several outputs:
`g[i]` is None if no adjoint arrived (`fill=True`: zeros instead). Reading `y[i]` of an optional
output that the model leaves out adds the output to the forward binding. `many=True` or `many=False`
decides for operators without a schema.

The parameters after `g` and `y` are read by name and position:

* the name of an attribute: its value, the schema's default filled in (the parameter's own default
  if there is none);
* `binding`: the forward Binding; `wanted`: a tuple of bools, one per input, for rules that skip
  unneeded work;
* anything else: the next operand, None if omitted. Operands that hold shapes, axes or counts
  (`formulas.SHAPE_LIKE`) arrive as a tuple of ints if constant and as a Var otherwise, both as
  inputs and as attributes of the opset.

A formula emits with `op.X(...)` and Python arithmetic on Vars; a literal takes the dtype of the
schema's type variable. Equal emissions are shared, so formulas may repeat common parts. A formula
that returns `None` adds nothing.

The engine undoes numpy broadcasting (`broadcasts=True`; the default for arithmetic, Where, MatMul,
Gemm), casts a partial to its operand's dtype, sets its operand's symbolic shape, and adds
partials up. Rules do not do this themselves. A partial of another shape raises an error that names
the rule. Models arrive at opset 18 or above.

Helpers: `reshape_like`, `expand_like`, `zeros_like`, `shape_of` (constant if sizes are known) in
`ir.emission.fill_and_reshape`, and `rules._common`. State the convention at a kink in `notes=`;
follow PyTorch's if it has one.
Every operator that a rule emits needs a rule itself, for second derivatives. Formulations are
chosen by measurement in onnxruntime.

`tests/grad/numeric.py` tests each family, with one line per case.
"""

from __future__ import annotations

import importlib
import pkgutil

from onnxgrad.grad import control_flow  # contains the rules of If, Loop and Scan

for _path, _package in ((control_flow.__path__, control_flow.__name__), (__path__, __name__)):
    for _module in pkgutil.walk_packages(_path, f"{_package}."):
        if not _module.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(_module.name)
