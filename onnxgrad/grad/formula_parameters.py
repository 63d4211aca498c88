"""What a formula asks for, read from its signature: operands, attributes, the binding."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import onnx

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import Formula, GradientRule

_ANY_VERSION = 1000


# operands that say shapes, axes, counts: a tuple of ints when constant (or an attribute), a Var at
# run time
SHAPE_LIKE = frozenset(
    {
        "axes", "axis", "block_shape", "dft_length", "ends", "frame_length", "frame_step",
        "image_shape", "K", "k", "output_shape", "pads", "repeats", "shape", "size", "sizes",
        "split", "starts", "steps",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a formula after `g` and `y`."""

    kind: Literal["operand", "attribute", "binding", "wanted", "operands"]
    name: str = ""
    index: int = 0
    default: Any = None


def plan(rule: GradientRule, index: int) -> tuple[Parameter, ...]:
    """What formula `index` of a rule asks for, read once from its signature."""
    found = rule.plans.get(index)
    if found is None:
        formula = rule.formulas[index]
        if formula is None:
            raise InputError(f"the rule of {rule.name} has no formula for operand {index}")
        found = rule.plans[index] = _plan(rule, formula)
    result: tuple[Parameter, ...] = found
    return result


def _plan(rule: GradientRule, formula: Formula) -> tuple[Parameter, ...]:
    inputs, attributes, variadic = formal_names(rule.domain, rule.op)
    parameters = list(inspect.signature(formula).parameters.values())[
        0 if rule.kind == "body" else 2 :
    ]
    result: list[Parameter] = []
    if rule.kind == "vjp_all":
        result.append(Parameter("operands"))
        parameters = parameters[1:]
    operands = 0
    for p in parameters:
        default = None if p.default is inspect.Parameter.empty else p.default
        if p.name in ("binding", "wanted"):
            result.append(Parameter("binding" if p.name == "binding" else "wanted"))
        elif (
            p.name in attributes
            or rule.kind == "vjp_all"
            or p.kind is p.KEYWORD_ONLY
            or (inputs is None and rule.kind != "body" and operands >= len(rule.formulas))
        ):
            result.append(Parameter("attribute", p.name, default=default))
        else:
            if inputs is not None and operands >= len(inputs) and not variadic:
                raise InputError(
                    f"the rule of {rule.name} asks for '{p.name}', which is no "
                    "attribute or input of it"
                )
            formal = inputs[operands] if inputs is not None and operands < len(inputs) else p.name
            result.append(Parameter("operand", formal, operands))
            operands += 1
    return tuple(result)


def formal_names(domain: str, op: str) -> tuple[list[str] | None, frozenset[str], bool]:
    """Input names of the newest schema (None: no schema), attribute names since opset 18,
    whether it is variadic.
    """
    newest = onnx.defs.onnx_opset_version()
    versions = [newest, 18] if domain == "" else [_ANY_VERSION]
    inputs: list[str] | None = None
    attributes: set[str] = set()
    variadic = False
    for version in versions:
        if not onnx.defs.has(op, max_inclusive_version=version, domain=domain):
            continue
        schema = onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
        if inputs is None:
            inputs = [i.name for i in schema.inputs]
            variadic = schema.max_input > len(inputs)
        attributes.update(schema.attributes)
    return inputs, frozenset(attributes - set(inputs or ())), variadic
