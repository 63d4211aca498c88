"""The contents of a model, its costs, and the roles of its constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from onnx import GraphProto, TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.weights.repairs import find_notes
from onnxgrad.grad.wrt import hoist, nested_constants, weigh
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import FunctionKey
from onnxgrad.ir.protobufs import Stats, stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import Dim, TensorType, Type, type_from_proto
from onnxgrad.ir.var import Var
from onnxgrad.jobs.inspection.costs import Costs, costs_of
from onnxgrad.jobs.lint.table import Finding, lint
from onnxgrad.options import known_keywords
from onnxgrad.results import Plain, Rendered, WithPage


@frozen
class Value(Plain):
    """An input or output: `type` as printed (`f32[N,4]`, `?` if unknown), and whether it has a
    default.
    """

    json_keys = "name type"

    name: str
    type: str
    default: bool = False


@frozen
class Summary(WithPage):
    """The contents of a model. `model`: its path, else its graph's name; `functions`: domain, name
    and overload of each; `nested`: the number of graphs inside nodes; `external`: the files of
    weights; `costs`: operations and bytes, by operator and by value; `lints`: likely faults.
    """

    json_keys = (
        "model ir_version opsets producer inputs outputs initializers functions=function_names "
        "metadata external lints nodes=stats.nodes parameters=stats.parameters bytes=stats.bytes "
        "operators=stats.by_name costs"
    )

    model: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[Value]
    outputs: list[Value]
    initializers: int
    functions: list[FunctionKey]
    nested: int
    metadata: dict[str, str]
    external: list[str]
    stats: Stats
    costs: Costs = field(default_factory=Costs)
    lints: list[Finding] = field(default_factory=list)
    # the model, for the page
    given: ModelLike | None = field(default=None, repr=False, compare=False)

    @property
    def function_names(self) -> list[str]:
        """Domain, name and overload of each function, joined by `::`."""
        return ["::".join(part for part in key if part) for key in self.functions]

    @property
    def versions(self) -> str:
        """The opsets with their domains."""
        return ", ".join(
            f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items()
        )


def inspect(model: ModelLike, dims: Mapping[str, int] | None = None) -> Summary:
    """Returns the contents of a model, as `onnxgrad.inspect` describes them."""
    model = settled(model)
    program = load(model)
    # a Program may have been changed since it was read
    proto = to_proto(program) if program is model else program.proto
    return Summary(
        model=str(program.path or proto.graph.name),
        ir_version=proto.ir_version,
        opsets=dict(program.opsets),
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=[_value(v, default=v.initializer is not None) for v in program.main.inputs],
        outputs=[
            Value(v.name, str(found or "?"))
            for v, found in zip(program.main.outputs, _declared(program.main))
        ],
        initializers=sum(len(block.initializers) for block in program.blocks()),
        functions=list(program.functions),
        nested=sum(len(b.blocks) for block in program.blocks() for b in block.bindings),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        external=sorted(
            {
                entry.value
                for tensor in proto.graph.initializer
                if tensor.data_location == TensorProto.EXTERNAL
                for entry in tensor.external_data
                if entry.key == "location"
            }
        ),
        stats=stats_of(proto),
        lints=lint(program),
        costs=costs_of(program, proto, dims or {}, spare=program is not model),  # last
        given=model,
    )


def _value(var: Var, default: bool = False) -> Value:
    return Value(var.name, "?" if var.type is None else str(var.type), default)


def _declared(block: BindingBlock) -> list[Type | None]:
    """Returns the types of the block's outputs, with the file's names of their sizes."""
    proto = block.proto
    said = {v.name: v.type for v in proto.output} if isinstance(proto, GraphProto) else {}
    return [
        _with_names(v.type, type_from_proto(said[v.name])) if v.name in said else v.type
        for v in block.outputs
    ]


def _with_names(inferred: Type | None, said: Type | None) -> Type | None:
    """Returns a type for readers, with both sizes if the file declares another one, as in
    `rows=B*S`.
    """
    if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
        return inferred
    if inferred.shape is None or said.shape is None or len(inferred.shape) != len(said.shape):
        return inferred
    return TensorType(inferred.dtype, tuple(map(_both, inferred.shape, said.shape)))


def _both(d: Dim, said: Dim) -> Dim:
    if d is None or (isinstance(d, str) and is_invented(d)):
        return said
    return d if said in (None, d) else f"{said}={d}"


def text_of(model: ModelLike) -> str:
    """Returns the model as text, one node per line. An output whose declared size differs from the
    inferred one shows both, as in `rows=B*S`.
    """
    program = load_own(model)
    for block in program.blocks():
        for v, found in zip(block.outputs, _declared(block)):
            v.type = found
    return program.text()


@frozen
class Weighed(Plain):
    """A floating-point constant: whether it is a weight, and why."""

    json_keys = "name type why"

    name: str
    type: str
    is_weight: bool
    why: str


@frozen
class Weights(Rendered):
    """The floating-point constants of a model that reach its outputs, in its order. `notes`: an
    exporter's changes of the parameters, and the repairs of a training step.
    """

    json_keys = "model weights left_out notes"

    model: str
    values: tuple[Weighed, ...]
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> list[Weighed]:
        """The constants that count as weights."""
        return [v for v in self.values if v.is_weight]

    @property
    def left_out(self) -> list[Weighed]:
        """The constants that do not count as weights."""
        return [v for v in self.values if not v.is_weight]


@known_keywords
def weights(model: ModelLike) -> Weights:
    """Returns the floating-point constants of the main graph and of nested graphs, and which of
    them count as weights. Reads elements if operand and name do not decide, and of weights that may
    be copies of each other; runs nothing. Raises InputError if the model cannot be read.
    """
    program = load_own(model)
    hoist(program, nested_constants(program))
    block = program.main
    values = {v.name: v for v in block.vars()}
    targets = [v for v in block.outputs if has_gradient(v.type)]
    decisions = weigh(block, targets, values)
    found = tuple(Weighed(v.name, str(v.type), d.is_weight, d.why) for v, d in decisions.items())
    trained = any(v.is_weight for v in found)
    notes = tuple(find_notes(program)) if trained else ()  # changes the program
    return Weights(str(program.path or block.name), found, notes)
