"""Calls each formula with the arguments named in its signature, and checks its results."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import GradientRule
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.type_inference import per_binding
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted

_ANY_VERSION = 1000


# operands that hold shapes, axes or counts: a formula gets a tuple of ints if they are constant or
# an attribute, else a Var
SHAPE_LIKE = frozenset(
    {
        "axes", "axis", "block_shape", "dft_length", "ends", "frame_length", "frame_step",
        "image_shape", "K", "k", "output_shape", "pads", "repeats", "shape", "size", "sizes",
        "split", "starts", "steps",
    }
)  # fmt: skip


@frozen
class Parameter:
    """One parameter of a formula after `g` and `y`."""

    kind: Literal["operand", "attribute", "given", "operands"]
    name: str = ""
    index: int = 0
    default: Any = None


@functools.cache
def parameters_of(rule: GradientRule, index: int) -> tuple[Parameter, ...]:
    """Returns the parameters of formula `index` of a rule, from its signature.

    Raises InputError for a parameter that is not an attribute or input of the operator.
    """
    inputs, attributes, variadic = formal_names(rule.domain, rule.op)
    formula = rule.formulas[index] or rule.formula
    parameters = list(inspect.signature(formula).parameters.values())[2:]
    result: list[Parameter] = []
    if rule.kind == "vjp_all":
        result.append(Parameter("operands"))
        parameters = parameters[1:]
    operands = 0
    for p in parameters:
        default = None if p.default is inspect.Parameter.empty else p.default
        if p.name in ("binding", "wanted"):
            result.append(Parameter("given", p.name))
        elif (
            p.name in attributes
            or rule.kind == "vjp_all"
            or p.kind is p.KEYWORD_ONLY
            or (inputs is None and operands >= len(rule.formulas))
        ):
            result.append(Parameter("attribute", p.name, default=default))
        else:
            if inputs is not None and operands >= len(inputs) and not variadic:
                raise InputError(
                    f"the rule of {rule.name} asks for '{p.name}', which is not "
                    "attribute or input of it"
                )
            formal = inputs[operands] if inputs is not None and operands < len(inputs) else p.name
            result.append(Parameter("operand", formal, operands))
            operands += 1
    return tuple(result)


def formal_names(domain: str, op: str) -> tuple[list[str] | None, frozenset[str], bool]:
    """Returns the input names of the newest schema (None without a schema), the attribute names
    since opset 18, and whether the operator is variadic.
    """
    versions = [_ANY_VERSION] if domain else [onnx.defs.onnx_opset_version(), 18]
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


class Results:
    """The outputs of a binding as a rule sees them. Reading `y[i]` adds an omitted optional output
    to the binding.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def __getitem__(self, index: int) -> Var:
        found = self._binding.result(index)
        return found if found is not None else complete_result(self._binding, index)

    def __len__(self) -> int:
        return len(self._binding.outputs)

    def __iter__(self) -> Iterator[Var]:
        return (self[i] for i in range(len(self)))


def complete_result(binding: Binding, index: int) -> Var:
    """Adds an omitted optional output, with its type, to a forward binding, so that the backward
    part can read it.
    """
    present = next(v for v in binding.outputs if v is not None)
    # a stand-in (checkpointing) shows its original's results
    binding = present.definition or binding
    block = binding.block
    name = block.program.names.fresh(f"{present.name}_{index}")
    names = [f"o{i}" if v is None else v.name for i, v in enumerate(binding.outputs)]
    names += [f"o{i}" for i in range(len(names), index)]
    names[index:] = [name]
    node = binding.to_node()
    node.output[:] = names
    schema = attributes.schema(binding.op, binding.version, binding.domain)
    types = per_binding.result_types(schema, node, binding.inputs, block)
    return block.add_result(binding, index, name, types[index])


def partials(
    rule: GradientRule, binding: Binding, g: Sequence[Var | None], wanted: Sequence[bool]
) -> list[Any]:
    """Returns one partial, or None, per input of `binding`. `g` has one adjoint per output, None if
    none arrived.

    Raises InputError naming the rule if it returns a wrong number of partials or reads an attribute
    that the binding does not have.
    """
    many = rule.many
    if many is None:
        schema = attributes.schema(binding.op, binding.version, binding.domain)
        many = (len(binding.outputs) if schema is None else schema.max_output) > 1
    if rule.fill:
        g = [
            zeros_like(v) if a is None and v is not None else a for a, v in zip(g, binding.outputs)
        ]
    adjoints: Any = tuple(g) if many else g[0]
    results: Any = Results(binding) if many else binding.out
    if rule.kind == "vjp_all":
        arguments, named = _arguments(rule, 0, binding, wanted)
        found = rule.formula(adjoints, results, *arguments, **named)
        if not isinstance(found, (list, tuple)) or len(found) != len(binding.inputs):
            count = len(found) if isinstance(found, (list, tuple)) else "no list of"
            raise InputError(
                f"the gradient rule of {rule.name} returned {count} partials for "
                f"{counted(len(binding.inputs), 'operand')} at '{binding}'"
            )
        return list(found)
    answer: list[Any] = [None] * len(binding.inputs)
    for i, needed in enumerate(wanted):
        formula = rule.formulas[i] if needed and i < len(rule.formulas) else None
        if formula is None:
            continue
        arguments, named = _arguments(rule, i, binding, wanted)
        found = formula(adjoints, results, *arguments, **named)
        if found is not None and not isinstance(found, Var):
            raise InputError(
                f"the gradient rule of {rule.name} returned {type(found).__name__} for operand {i} "
                f"at '{binding}': one formula returns one value"
            )
        answer[i] = found
    return answer


def _arguments(
    rule: GradientRule, index: int, binding: Binding, wanted: Sequence[bool]
) -> tuple[list[Any], dict[str, Any]]:
    arguments, named = list[Any](), dict[str, Any]()
    given = {"binding": binding, "wanted": tuple(wanted)}
    for p in parameters_of(rule, index):
        if p.kind == "operands":
            arguments.append(tuple(binding.inputs))
        elif p.kind == "operand":
            arguments.append(_operand(binding, p))
        else:
            is_given = p.kind == "given"
            named[p.name] = given[p.name] if is_given else binding.attr(p.name, p.default)
    return arguments, named


def _operand(binding: Binding, p: Parameter) -> Any:
    """Returns an operand by position. One that holds a shape or axes may be an attribute instead;
    if it is constant, it is a tuple of ints.
    """
    value, shape_like = binding.operand(p.index), p.name in SHAPE_LIKE
    if value is None:
        found = binding.attrs.get(p.name)
        return (found,) if shape_like and isinstance(found, int) else found
    ints = value.ints if shape_like else None
    return value if ints is None else ints
