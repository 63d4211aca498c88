"""`inspect`: the contents of a model, its costs, and which constants count as weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.wrt import hoist, nested_constants, weigh
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import FunctionKey
from onnxgrad.ir.protobufs import Stats, stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.report.costs import Costs, OperatorCost, Sized, costs_of
from onnxgrad.report.html.models import model_page
from onnxgrad.report.parts import (
    Part,
    Table,
    bytes_text,
    cell,
    entries,
    first_of,
    heading,
    line,
    number,
    scaled,
    table,
)
from onnxgrad.report.rendering import Rendered
from onnxgrad.results import Plain

_ROWS = 30  # operators and metadata without -v
_FEW = 5  # weights and values without -v
_SHORT = 80  # characters of a metadata value without -v


@dataclass(frozen=True)
class Value(Plain):
    """An input or output: `type` as it is printed (`f32[N,4]`, `?` where unknown), and whether
    it has a default.
    """

    json_keys = "name type"

    name: str
    type: str
    default: bool = False


@dataclass(frozen=True)
class Summary(Rendered):
    """The contents of a model. `model`: its path, else its graph's name; `functions`: domain, name
    and overload of each; `nested`: the number of graphs inside nodes; `external`: the files of
    weights; `costs`: operations and bytes, by operator and by value.
    """

    json_keys = (
        "model ir_version opsets producer inputs outputs initializers functions=function_names "
        "metadata external nodes=stats.nodes parameters=stats.parameters bytes=stats.bytes "
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
    # the model, for the page
    given: ModelLike | None = field(default=None, repr=False, compare=False)

    def to_html(self) -> str:
        """A page to look at, as one file that needs no network: the graph, searchable."""
        if self.given is None:
            raise InputError(
                "this Summary has no model: only what onnxgrad.inspect returns has a page"
            )
        parts = self.parts(verbose=True)
        return model_page(self.model, self.stats, self.versions, self.ir_version, parts, self.given)

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

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The facts, the interface, the operators with what they cost, the largest weights and
        values, the metadata.
        """
        yield heading(self.model)
        yield self._facts()
        yield ""
        yield self._interface()
        yield ""
        counts, more = first_of(self.stats.operators.most_common(), _ROWS, verbose)
        costs = self.costs.operators
        rows = ((cell(op), number(count), *_cost_cells(costs.get(op))) for op, count in counts)
        yield table("operator", ">count", ">FLOPs", ">results", rows=rows)
        yield from more
        yield from _sized("weights", self.costs.weights, verbose)
        yield from _sized("values", self.costs.values, verbose)
        if self.costs.unknown_values:
            yield line(f"and {number(self.costs.unknown_values)} of unknown size", "dim")
        if not self.metadata:
            return
        yield ""
        shown, more = first_of(list(self.metadata.items()), _ROWS, verbose)
        yield entries({k: " ".join(v.split()) for k, v in shown}, _SHORT, verbose)
        yield from more

    def _facts(self) -> Table:
        stats = self.stats
        kinds = [(dtype, n) for dtype, n in stats.dtypes.most_common() if n]
        several = ", ".join(f"{number(n)} {dtype}" for dtype, n in kinds)
        dtypes = several if len(kinds) > 1 else "".join(dtype for dtype, _ in kinds)
        facts = {
            "size": bytes_text(stats.bytes),
            "nodes": number(stats.nodes),
            "parameters": f"{number(stats.parameters)} ({dtypes})" if dtypes else "0",
            "initializers": number(self.initializers),
            "FLOPs": self._total(),
            "memory": self._memory(),
            "nested graphs": number(self.nested) if self.nested else "",
            "functions": ", ".join(name for _, name, _ in self.functions),
            "weights in": ", ".join(self.external),
            "opset": self.versions,
            "IR version": str(self.ir_version),
            "made by": self.producer,
        }
        return table(rows=((cell(k, "dim"), cell(text)) for k, text in facts.items() if text))

    def _total(self) -> str:
        """The operations of one run, and how many nodes are not counted."""
        costs = self.costs
        known = count_text(costs.flops)
        if not costs.unknown:
            return known
        reasons = {"sizes open:": costs.open, "no formula for": costs.without_formula}
        why = "; ".join(f"{what} {', '.join(names)}" for what, names in reasons.items() if names)
        nodes = f"unknown for {number(costs.unknown)} of {number(self.stats.nodes)} nodes"
        least = f"at least {known}, " if costs.flops else ""
        return f"{least}{nodes}{f' ({why})' if why else ''}"

    def _memory(self) -> str:
        """Weights, and the values of a run."""
        peak = self.costs.peak
        values = "unknown" if peak is None else f"up to {bytes_text(peak)} at once"
        return f"weights {bytes_text(self.costs.weight_bytes)}, values {values}"

    def _interface(self) -> Table:
        kinds = [(v, "input with default" if v.default else "input") for v in self.inputs]
        kinds += [(v, "output") for v in self.outputs]
        rows = ((cell(kind, "dim"), cell(v.name), cell(v.type, "cyan")) for v, kind in kinds)
        return table("", "name", "type", rows=rows)


def count_text(value: int) -> str:
    """A number of operations in units of a thousand each."""
    size, unit = scaled(value, ("", " k", " M", " G", " T", " P"))
    return f"{size:.3g}{unit}"


def _cost_cells(cost: OperatorCost | None) -> tuple[str, str]:
    """Operations and bytes of results."""
    if cost is None:
        return "", ""
    return (
        _known(count_text(cost.flops), cost.flops, cost.unknown_flops),
        _known(bytes_text(cost.bytes), cost.bytes, cost.unknown_bytes),
    )


def _known(text: str, value: int, unknown: int) -> str:
    """A sum, of which something may be unknown."""
    return text if not unknown else f"≥ {text}" if value else "?"


def _sized(what: str, found: list[Sized], verbose: bool) -> Iterator[Part]:
    """A table of the largest ones; nothing if there are none."""
    if found:
        yield ""
        shown = found if verbose else found[:_FEW]
        rows = ((cell(s.name), cell(s.type, "cyan"), bytes_text(s.bytes)) for s in shown)
        yield table(f"largest {what}", "type", ">size", rows=rows)


def inspect(model: ModelLike, dims: Mapping[str, int] | None = None) -> Summary:
    """Returns the contents of a model; `onnxgrad.inspect` says which."""
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
        outputs=[_value(v) for v in program.main.outputs],
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
        costs=costs_of(program, proto, dims or {}, spare=program is not model),  # last
        given=model,
    )


def _value(var: Var, default: bool = False) -> Value:
    return Value(var.name, "?" if var.type is None else str(var.type), default)


@dataclass(frozen=True)
class Weighed(Plain):
    """A floating-point constant: a weight or not, and why."""

    json_keys = "name type why"

    name: str
    type: str
    is_weight: bool
    why: str


@dataclass(frozen=True)
class Weights(Rendered):
    """The floating-point constants of a model that reach its outputs, in its order."""

    json_keys = "model weights left_out"

    model: str
    values: tuple[Weighed, ...]

    @property
    def weights(self) -> list[Weighed]:
        """The constants that count as weights."""
        return [v for v in self.values if v.is_weight]

    @property
    def left_out(self) -> list[Weighed]:
        """The constants that do not."""
        return [v for v in self.values if not v.is_weight]

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The weights, then what is left out; without -v the first of each reason."""
        yield heading(self.model)
        for title, found in (("weight", self.weights), ("left out", self.left_out)):
            if not found and title != "weight":
                return
            shown = found if verbose else _first_of_each_reason(found)
            rows = ((cell(v.name), cell(v.type, "cyan"), cell(v.why, "dim")) for v in shown)
            yield table(f"{title} ({number(len(found))})", "type", "why", rows=rows)
            if len(shown) < len(found):
                yield f"and {number(len(found) - len(shown))} more (-v)"


def _first_of_each_reason(values: list[Weighed]) -> list[Weighed]:
    """As many of each reason as fit."""
    places: dict[str, list[int]] = {}
    for i, v in enumerate(values):
        places.setdefault(v.why, []).append(i)
    each = max(1, _ROWS // max(1, len(places)))
    return [values[i] for i in sorted(i for found in places.values() for i in found[:each])]


@known_keywords
def weights(model: ModelLike) -> Weights:
    """Returns the floating-point constants of the main graph and of nested ones, and which of them
    count as weights. Reads elements where operand and name do not decide; runs nothing. Raises
    InputError if the model cannot be read.
    """
    program = load_own(model)
    hoist(program, nested_constants(program))
    block = program.main
    values = {v.name: v for v in block.vars()}
    targets = [v for v in block.outputs if has_gradient(v.type)]
    decisions = weigh(block, targets, values)
    return Weights(
        str(program.path or block.name),
        tuple(Weighed(v.name, str(v.type), d.is_weight, d.why) for v, d in decisions.items()),
    )
