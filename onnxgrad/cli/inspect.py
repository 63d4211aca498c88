"""`onnxgrad inspect`: what is in a model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from onnx import ModelProto, TensorProto
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onnxgrad.cli.common import STDIN, named, source
from onnxgrad.cli.limit_options import add_limits, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.block import Var
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.stats import Stats, stats_of
from onnxgrad.ir.text import block_text
from onnxgrad.report.parts import bytes_text, cell, heading, number, table

_ROWS = 30  # operators and metadata without -v


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument("--text", action="store_true", help="print the whole binding block")
    add_limits(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """Always 0: a model that cannot be read is an error."""
    try:
        with within_limits(args):
            program = load(source(args.model))
    except OnnxgradError as error:
        raise named(error, args.model) from error
    if args.text:
        out.text(_text(program))
        out.json({"model": args.model, "text": _text(program)})
        return 0
    stats = stats_of(program.proto)
    out.json({"model": args.model, **_data(program, stats)})
    out.show(*_summary("stdin" if args.model == STDIN else args.model, program, stats, out.verbose))
    return 0


def _text(program: Program) -> str:
    functions = [block_text(b, "::".join(part for part in key if part)) for key, b in program.functions.items()]
    return "\n\n".join([str(program.main), *functions])


def _data(program: Program, stats: Stats) -> dict[str, Any]:
    proto = program.proto
    return {
        "ir_version": proto.ir_version,
        "opsets": program.opsets,
        "producer": _producer(proto),
        "inputs": [_value(v) for v in program.main.inputs],
        "outputs": [_value(v) for v in program.main.outputs],
        "initializers": len(program.main.initializers),
        "functions": ["::".join(part for part in key if part) for key in program.functions],
        "metadata": {entry.key: entry.value for entry in proto.metadata_props},
        "external": _external(proto),
        **stats.to_dict(),
    }


def _value(var: Var) -> dict[str, str]:
    return {"name": var.name, "type": "?" if var.type is None else str(var.type)}


def _producer(proto: ModelProto) -> str:
    return f"{proto.producer_name} {proto.producer_version}".strip()


def _external(proto: ModelProto) -> list[str]:
    return sorted(
        {
            entry.value
            for tensor in proto.graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )


def _summary(name: str, program: Program, stats: Stats, verbose: bool) -> Iterator[RenderableType]:
    proto = program.proto
    yield heading(name)
    yield _facts(program, stats)
    yield ""
    yield _interface(program)
    yield ""
    made = table("operator", ">count")
    counts = stats.operators.most_common()
    for op, count in counts if verbose else counts[:_ROWS]:
        made.add_row(cell(op), number(count))
    yield made
    if not verbose and len(counts) > _ROWS:
        yield Text(f"and {len(counts) - _ROWS} more (-v)", style="dim")
    if proto.metadata_props:
        yield ""
        made = table("metadata", "value")
        entries = proto.metadata_props
        for entry in entries if verbose else entries[:_ROWS]:
            text = entry.value if verbose or len(entry.value) <= 80 else f"{entry.value[:77]}..."
            made.add_row(cell(entry.key), cell(" ".join(text.split())))
        yield made
        if not verbose and len(entries) > _ROWS:
            yield Text(f"and {len(entries) - _ROWS} more (-v)", style="dim")


def _facts(program: Program, stats: Stats) -> Table:
    proto = program.proto
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in program.opsets.items())
    kinds = [(dtype, n) for dtype, n in stats.dtypes.most_common() if n]
    dtypes = ", ".join(f"{number(n)} {dtype}" for dtype, n in kinds) if len(kinds) > 1 else "".join(d for d, _ in kinds)
    nested = sum(len(b.blocks) for block in program.blocks() for b in block.bindings)
    facts = {
        "size": bytes_text(stats.bytes),
        "nodes": number(stats.nodes),
        "parameters": f"{number(stats.parameters)} ({dtypes})" if dtypes else "0",
        "initializers": number(len(program.main.initializers)),
        "nested graphs": number(nested) if nested else "",
        "functions": ", ".join(name for _, name, _ in program.functions),
        "weights in": ", ".join(_external(proto)),
        "opset": opsets,
        "IR version": str(proto.ir_version),
        "made by": _producer(proto),
    }
    made = Table.grid(padding=(0, 3, 0, 0))
    for what, text in facts.items():
        if text:
            made.add_row(cell(what, "dim"), cell(text))
    return made


def _interface(program: Program) -> Table:
    made = table("", "name", "type")
    for kind, values in (("input", program.main.inputs), ("output", program.main.outputs)):
        for var in values:
            what = f"{kind} with default" if kind == "input" and var.initializer is not None else kind
            made.add_row(cell(what, "dim"), cell(var.name), cell("?" if var.type is None else var.type, "cyan"))
    return made
