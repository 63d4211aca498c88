"""`inspect`: what is in a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, TensorProto

from onnxgrad.ir.interop.given import settled
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import FunctionKey
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.stats import Stats, stats_of
from onnxgrad.ir.var import Var
from onnxgrad.report.parts import Part, Table, bytes_text, cell, heading, line, number, table
from onnxgrad.report.rendering import Rendered

_ROWS = 30  # operators and metadata without -v
_SHORT = 80  # characters of a metadata value without -v


@dataclass(frozen=True)
class Value:
    """An input or output: `type` as it is printed (`f32[N,4]`, `?` where unknown), and whether
    it has a default.
    """

    name: str
    type: str
    default: bool = False

    def to_dict(self) -> dict[str, str]:
        """JSON's types."""
        return {"name": self.name, "type": self.type}


@dataclass(frozen=True)
class Summary(Rendered):
    """What is in a model. `model`: its path, else its graph's name; `functions`: domain, name and
    overload of each; `nested`: how many graphs stand inside nodes; `external`: the files that hold
    weights.
    """

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

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return {
            "model": self.model,
            "ir_version": self.ir_version,
            "opsets": self.opsets,
            "producer": self.producer,
            "inputs": [v.to_dict() for v in self.inputs],
            "outputs": [v.to_dict() for v in self.outputs],
            "initializers": self.initializers,
            "functions": ["::".join(part for part in key if part) for key in self.functions],
            "metadata": self.metadata,
            "external": self.external,
            **self.stats.to_dict(),
        }

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The facts, the interface, how often each operator stands in it, the metadata."""
        yield heading(self.model)
        yield self._facts()
        yield ""
        yield self._interface()
        yield ""
        counts = self.stats.operators.most_common()
        made = table("operator", ">count")
        for op, count in counts if verbose else counts[:_ROWS]:
            made.add_row(cell(op), number(count))
        yield made
        yield from _more(len(counts), verbose)
        if not self.metadata:
            return
        yield ""
        made = table("metadata", "value")
        for key, text in list(self.metadata.items())[: None if verbose else _ROWS]:
            short = text if verbose or len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
            made.add_row(cell(key), cell(" ".join(short.split())))
        yield made
        yield from _more(len(self.metadata), verbose)

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
            "nested graphs": number(self.nested) if self.nested else "",
            "functions": ", ".join(name for _, name, _ in self.functions),
            "weights in": ", ".join(self.external),
            "opset": ", ".join(
                f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items()
            ),
            "IR version": str(self.ir_version),
            "made by": self.producer,
        }
        made = Table()
        for what, text in facts.items():
            if text:
                made.add_row(cell(what, "dim"), cell(text))
        return made

    def _interface(self) -> Table:
        made = table("", "name", "type")
        for kind, values in (("input", self.inputs), ("output", self.outputs)):
            for value in values:
                what = f"{kind} with default" if value.default else kind
                made.add_row(cell(what, "dim"), cell(value.name), cell(value.type, "cyan"))
        return made


def _more(count: int, verbose: bool) -> Iterator[Part]:
    if not verbose and count > _ROWS:
        yield line(f"and {count - _ROWS} more (-v)", "dim")


def inspect(model: ModelLike) -> Summary:
    """What is in a model: interface, operators, parameters, metadata. Nothing is run, no external
    data read.

    Raises InputError when the model cannot be read.

    >>> onnxgrad.inspect("models/training/mlp.onnx").stats.operators["Gemm"]
    3
    """
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
        initializers=len(program.main.initializers),
        functions=list(program.functions),
        nested=sum(len(b.blocks) for block in program.blocks() for b in block.bindings),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        external=_external(proto),
        stats=stats_of(proto),
    )


def _value(var: Var, default: bool = False) -> Value:
    return Value(var.name, "?" if var.type is None else str(var.type), default)


def _external(proto: ModelProto) -> list[str]:
    outside = [t for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    return sorted(
        {
            entry.value
            for tensor in outside
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
