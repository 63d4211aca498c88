"""The user's own operators in the float64 reference: numpy functions, which run in the process that
registered them.

The reference runs in a child process without the user's modules. There, each of these operators
calls the parent (`running.child_process`, `Child.ask`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import model_nodes
from onnxgrad.options import known_keywords

_F = TypeVar("_F", bound=Callable[..., Any])
NOT_KNOWN = "is not a registered function/op"  # as onnxruntime words it
OWN: dict[tuple[str, str], Callable[..., Any]] = {}


@known_keywords
def kernel(name: str) -> Callable[[_F], _F]:
    """Registers the numpy function that computes an operator of your own, for proofs and for
    `check_gradient`. The function receives the operands, and the attributes as keywords.

    `name` is "my.domain::Op". An omitted operand is None. Floats are float64, in operands and in
    results, whatever the file declares, so that rounding cannot hide a change. Several outputs are
    a tuple. If onnxruntime does not know the operator (see `custom_ops`), the onnxruntime check
    does not run, and the verdict says so. Raises InputError for an operator that ONNX defines.

    >>> @onnxgrad.kernel("my.domain::Power")
    ... def power(x, *, exponent=2.0):
    ...     return x**exponent
    >>> model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
    ... g (float[3] x) => (float[3] y) { z = my.domain.Power <exponent = 3.0> (x)  y = Neg(z) }''')
    >>> onnxgrad.verify(model, model).checks["float64"].ran
    True
    """
    key = domains.split_name(name)
    if onnx.defs.has(key[1], key[0]):
        raise InputError(
            f"kernel({name!r}): ONNX says what {name} computes; an operator of your own has a "
            'domain, as in "my.domain::Op"'
        )

    def register(function: _F) -> _F:
        OWN[key] = function
        return function

    return register


def own_operators(model: onnx.ModelProto) -> list[str]:
    """Returns the operators in a model, its functions and nested graphs for which the user
    registered a function.
    """
    if not OWN:
        return []
    functions = {(domains.canonical(f.domain), f.name) for f in model.functions}
    found = {
        domains.full_name(node.domain, node.op_type): None
        for node in model_nodes(model)
        if (key := (domains.canonical(node.domain), node.op_type)) in OWN and key not in functions
    }
    return list(found)


def unknown_to_onnxruntime(model: onnx.ModelProto, reason: str) -> str:
    """Returns the user's own operators of a model, if the `reason` of onnxruntime's error is an
    unknown operator; otherwise an empty text.
    """
    return ", ".join(own_operators(model)) if NOT_KNOWN in reason else ""


def call_own(
    function: Callable[..., Any], outputs: int, operands: list[Any], attributes: dict[str, Any]
) -> list[Any]:
    """Returns the results of the user's function: `outputs` arrays. Its exceptions reach the
    caller. Other results raise a TypeError.
    """
    found = function(*operands, **attributes)
    listed = list(found) if isinstance(found, tuple) else [found]
    if len(listed) < outputs:
        raise TypeError(f"the kernel returns {len(listed)} of {outputs} outputs")
    made = [v if v is None or isinstance(v, list) else np.asarray(v) for v in listed]
    objects = [v for v in made if isinstance(v, np.ndarray) and v.dtype == object]
    if not all(isinstance(item, str) for value in objects for item in value.flat):
        raise TypeError("the kernel returns something that is not an array")
    return made
