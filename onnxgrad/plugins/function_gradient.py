"""The gradient of a local function, as another function in the same file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from onnx import FunctionProto, ModelProto, ValueInfoProto, helper

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.check import check_gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.sequences import is_float
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.function_bodies import called
from onnxgrad.ir.load import ModelLike, function_block, load
from onnxgrad.ir.program import FunctionKey, Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import SequenceType, TensorType, Type, type_to_proto
from onnxgrad.jobs.declared import REQUIRED, option
from onnxgrad.jobs.gradient_declarations import GradOptions
from onnxgrad.jobs.gradients import Changed, PluggedDerivative
from onnxgrad.jobs.groups import Limits
from onnxgrad.passes.remove_unused import names_function
from onnxgrad.plugins.function_attributes import Values, bind, probes, refer_to_attributes
from onnxgrad.report.gradient import GradientMade
from onnxgrad.report.parts import Part


@frozen
class FunctionMade(GradientMade):
    """A model with a new function, and its check, if any."""

    json_keys = "function=gradient.new check"

    def head(self, verbose: bool) -> Iterator[Part]:
        """Yields the name of the function."""
        yield f"new function {self.gradient.new}"


@frozen(kw_only=True)
class FunctionGradientOptions(PluggedDerivative, Limits):
    """The options of `function_gradient`."""

    job: ClassVar[str] = "function_gradient"
    made: ClassVar[Any] = FunctionMade

    name: str = option(REQUIRED, "name or domain::name of the function", positional=True)

    @staticmethod
    def formed(program: Program, *chosen: Any, **options: Any) -> Changed:
        """Returns the program with the gradient of the function."""
        program, _ = raise_opset(program)
        return Changed(program, add_function_gradient(program, *chosen, **options)[1])

    def checked(self, model: ModelLike, found: Changed, proof: GradOptions) -> GradientReport:
        """Compares the gradient of the function with finite differences."""
        original = load(model)
        original.digests = found.program.digests  # the weights that are written are those checked
        program, _ = raise_opset(original)
        seed, provider = proof.seed, proof.provider
        return check_function(program, self.name, asked=False, seed=seed, provider=provider)


def add_function_gradient(program: Program, name: str) -> FunctionKey:
    """Adds the gradient of a function to a program of opset 18 or above. Returns the key of the new
    function.
    """
    key = _find(program, name)
    domain, own, overload = key
    new = (domain, f"{own}_grad", overload)
    if new in program.functions:
        raise InputError(f"the model has a function {domain}::{new[1]} already")
    types = [None if t is None else _open(t) for t in _types(program, key)]
    values, *others = values_of_calls(program, key)
    function = _gradient_at(program, key, types, values)
    if values:
        made = [(v, _gradient_at(program, key, types, v)) for v in others]
        made += [
            (v, f) for v in probes(values) if (f := _tried(program, key, types, v)) is not None
        ]
        refer_to_attributes(function, values, made)
        source = program.functions[key].proto
        if isinstance(source, FunctionProto):
            function.attribute.extend(source.attribute)
            function.attribute_proto.extend(source.attribute_proto)
    program.functions[new] = function_block(program, function)
    program.main.touch()
    return new


def _tried(
    program: Program, key: FunctionKey, types: list[Type | None], values: Values
) -> FunctionProto | None:
    """Returns the gradient for other values of the attributes, None if these are not valid."""
    try:
        return _gradient_at(program, key, types, values)
    except OnnxgradError:
        return None


def _gradient_at(
    program: Program, key: FunctionKey, types: list[Type | None], values: Values
) -> FunctionProto:
    """Returns the gradient of a function for these values of its attributes, as a function without
    attributes.
    """
    domain, own, overload = key
    found = differentiate(
        load(as_model(program, key, types, values)),
        *request(program, key, types, values),
        adjoint="input",
    )
    block = found.program.main
    forward = len(block.outputs) - len(found.adjoints)
    for v in block.outputs[:forward]:
        v.returned -= 1
    del block.outputs[:forward]
    block.remove_unused()
    block.touch()
    graph = to_proto(found.program, weights=True).graph
    function = FunctionProto(domain=domain, name=f"{own}_grad", overload=overload)
    function.input.extend(v.name for v in graph.input)
    function.output.extend(v.name for v in graph.output)
    function.node.extend(
        helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer
    )
    function.node.extend(graph.node)
    function.doc_string = (
        f"gradient of {own}: {', '.join(found.adjoints)} from {', '.join(found.seeds)}"
    )
    for imported, version in found.program.opsets.items():
        function.opset_import.add(domain=imported, version=version)
    return function


def check_function(program: Program, name: str, **options: Any) -> GradientReport:
    """Runs `check_gradient` on the function, with the sizes of its first call. Raises the errors of
    `function_gradient`.
    """
    key = _find(program, name)
    types, values = _types(program, key), values_of_calls(program, key)[0]
    model = as_model(program, key, types, values)
    return check_gradient(model, *request(program, key, types, values), **options)


def request(
    program: Program, key: FunctionKey, types: list[Type | None], values: Values
) -> tuple[list[str], list[str]]:
    """Returns the names of all floating-point operands and results. Raises InputError if there are
    none.
    """
    model = load(as_model(program, key, types, values))
    wrt = [v.name for v in model.main.inputs if is_float(v)]
    targets = [v.name for v in model.main.outputs if is_float(v) and isinstance(v.type, TensorType)]
    if not wrt or not targets:
        raise InputError(
            f"function {key[0]}::{key[1]} has no floating-point operands, or no such results"
        )
    return wrt, targets


def as_model(
    program: Program, key: FunctionKey, types: list[Type | None], values: Values
) -> ModelProto:
    """Returns a model whose main graph is the function's body, for these types of its operands and
    these values of its attributes.
    """
    body = program.functions[key].proto
    proto = to_proto(program)
    model = ModelProto(ir_version=proto.ir_version)
    opsets = {o.domain: o.version for o in proto.opset_import}
    opsets |= (
        {o.domain: o.version for o in body.opset_import} if isinstance(body, FunctionProto) else {}
    )
    for domain, version in opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.functions.extend(proto.functions)
    source = next(f for f in proto.functions if (f.domain, f.name, f.overload) == key)
    model.graph.name = source.name
    model.graph.node.extend(source.node)
    bind(model.graph, values)
    model.graph.input.extend(
        ValueInfoProto(name=n, type=type_to_proto(t))
        for n, t in zip(source.input, types, strict=True)
    )
    model.graph.output.extend(ValueInfoProto(name=n) for n in source.output)
    return model


def _find(program: Program, name: str) -> FunctionKey:
    found = [key for key in program.functions if names_function(name, key)]
    if len(found) != 1:
        listed = ", ".join(f"{domain}::{own}" for domain, own, _ in program.functions) or "none"
        raise InputError(f"'{name}' names {len(found)} functions; the model has {listed}")
    return found[0]


def values_of_calls(program: Program, key: FunctionKey) -> list[Values]:
    """Returns the attributes of all calls in the main graph, completed by the function's defaults,
    each combination once.
    """
    body = program.functions[key].proto
    if not isinstance(body, FunctionProto):
        return [{}]
    defaults = {a.name: a for a in body.attribute_proto}
    known = {*defaults, *body.attribute}
    found: list[Values] = []
    for b in program.main.walk():
        if called(b) == key:
            given = defaults | {a.name: a for a in b.node.attribute if a.name in known}
            if given not in found:
                found.append(given)
    return found or [defaults]


def _types(program: Program, key: FunctionKey) -> list[Type | None]:
    calls = [b for b in program.main.walk() if called(b) == key]
    if not calls:
        raise InputError(
            f"nothing in the main graph calls function {key[0]}::{key[1]}, so its "
            "operands have no types"
        )
    count = len(program.functions[key].inputs)
    first = _operands(calls[0], count)
    for b in calls[1:]:
        if [t and _open(t) for t in _operands(b, count)] != [t and _open(t) for t in first]:
            raise InputError(
                f"'{b}' and '{calls[0]}' call one function with other kinds or ranks: it has no "
                "one gradient"
            )
    if any(t is None or (isinstance(t, TensorType) and t.shape is None) for t in first):
        raise InputError(f"the kinds and ranks of the operands of '{calls[0]}' are not all known")
    return first


def _operands(b: Binding, count: int) -> list[Type | None]:
    given = [None if v is None else v.type for v in b.inputs]
    return given + [None] * (count - len(given))


def _open(type_: Type) -> Type:
    """Returns the type with open sizes, because the function serves all its calls."""
    if isinstance(type_, TensorType) and type_.shape is not None:
        return TensorType(type_.dtype, (None,) * len(type_.shape))
    if isinstance(type_, SequenceType) and type_.elem is not None:
        return SequenceType(_open(type_.elem))
    return type_
