"""The text of `inspect`: the contents of a model, its costs, and its weights."""

from __future__ import annotations

from collections.abc import Iterator

from onnxgrad.jobs.inspection.contents import Summary, Weighed, Weights
from onnxgrad.jobs.inspection.costs import Costs, OperatorCost, Sized
from onnxgrad.report.parts import (
    Part,
    Table,
    bytes_text,
    cell,
    entries,
    first_of,
    heading,
    line,
    lint_lines,
    number,
    scaled,
    table,
)
from onnxgrad.wording import dim_option

_ROWS = 30  # operators and metadata without -v
_FEW = 5  # weights and values without -v
_SHORT = 80  # characters of a metadata value without -v


def summary_parts(found: Summary, verbose: bool = False) -> Iterator[Part]:
    """Yields the facts, the interface, the operators with their costs, the largest weights and
    values, and the metadata.
    """
    yield heading(found.model)
    yield from lint_lines(found.lints)
    yield _facts(found)
    yield ""
    yield _interface(found)
    yield ""
    counts, more = first_of(found.stats.operators.most_common(), _ROWS, verbose)
    costs = found.costs.operators
    rows = ((cell(op), number(count), *_cost_cells(costs.get(op))) for op, count in counts)
    yield table("operator", ">count", ">FLOPs", ">results", rows=rows)
    yield from more
    yield from _sized("weights", found.costs.weights, verbose)
    yield from _sized("values", found.costs.values, verbose)
    if found.costs.unknown_values:
        yield line(f"and {number(found.costs.unknown_values)} of unknown size", "dim")
    if not found.metadata:
        return
    yield ""
    shown, more = first_of(list(found.metadata.items()), _ROWS, verbose)
    yield entries({k: " ".join(v.split()) for k, v in shown}, _SHORT, verbose)
    yield from more


def _facts(found: Summary) -> Table:
    stats = found.stats
    kinds = [(dtype, n) for dtype, n in stats.dtypes.most_common() if n]
    several = ", ".join(f"{number(n)} {dtype}" for dtype, n in kinds)
    dtypes = several if len(kinds) > 1 else "".join(dtype for dtype, _ in kinds)
    facts = {
        "size": bytes_text(stats.bytes),
        "nodes": number(stats.nodes),
        "parameters": f"{number(stats.parameters)} ({dtypes})" if dtypes else "0",
        "initializers": number(found.initializers),
        "FLOPs": _total(found),
        "memory": _memory(found.costs),
        "nested graphs": number(found.nested) if found.nested else "",
        "functions": ", ".join(name for _, name, _ in found.functions),
        "weights in": ", ".join(found.external),
        "opset": found.versions,
        "IR version": str(found.ir_version),
        "made by": found.producer,
    }
    return table(rows=((cell(k, "dim"), cell(text)) for k, text in facts.items() if text))


def _total(found: Summary) -> str:
    """Returns the operations of one run, and the number of nodes that are not counted."""
    costs = found.costs
    known = count_text(costs.flops)
    if not costs.unknown:
        return known
    reasons = {"sizes open:": costs.open, "no formula for": costs.without_formula}
    why = "; ".join(f"{what} {', '.join(names)}" for what, names in reasons.items() if names)
    nodes = f"unknown for {number(costs.unknown)} of {number(found.stats.nodes)} nodes"
    least = f"at least {known}, " if costs.flops else ""
    return f"{least}{nodes}{f' ({why})' if why else ''}"


def _memory(costs: Costs) -> str:
    """Returns the bytes of the weights, and of the values of a run."""
    peak = costs.peak
    if peak is not None:
        values = f"up to {bytes_text(peak)} at once"
    elif costs.open:
        values = f"unknown ({', '.join(costs.open)} open: {dim_option(*costs.open)} counts them)"
    else:
        values = "unknown"
    return f"weights {bytes_text(costs.weight_bytes)}, values {values}"


def _interface(found: Summary) -> Table:
    kinds = [(v, "input with default" if v.default else "input") for v in found.inputs]
    kinds += [(v, "output") for v in found.outputs]
    rows = ((cell(kind, "dim"), cell(v.name), cell(v.type, "cyan")) for v, kind in kinds)
    return table("", "name", "type", rows=rows)


def count_text(value: int) -> str:
    """Returns a number of operations in units, each a thousand times the one before."""
    size, unit = scaled(value, ("", " k", " M", " G", " T", " P"))
    return f"{size:.3g}{unit}"


def _cost_cells(cost: OperatorCost | None) -> tuple[str, str]:
    """Returns operations and bytes of results."""
    if cost is None:
        return "", ""
    return (
        _known(count_text(cost.flops), cost.flops, cost.unknown_flops),
        _known(bytes_text(cost.bytes), cost.bytes, cost.unknown_bytes),
    )


def _known(text: str, value: int, unknown: int) -> str:
    """Returns a sum as text, marked if a part of it is unknown."""
    return text if not unknown else f"≥ {text}" if value else "?"


def _sized(what: str, found: list[Sized], verbose: bool) -> Iterator[Part]:
    """Yields a table of the largest ones; nothing if there are none."""
    if found:
        yield ""
        shown = found if verbose else found[:_FEW]
        rows = ((cell(s.name), cell(s.type, "cyan"), bytes_text(s.bytes)) for s in shown)
        yield table(f"largest {what}", "type", ">size", rows=rows)


def weights_parts(found: Weights, verbose: bool = False) -> Iterator[Part]:
    """Yields the weights, then the constants that are left out; without -v the first of each
    reason.
    """
    yield heading(found.model)
    for title, values in (("weight", found.weights), ("left out", found.left_out)):
        if not values and title != "weight":
            continue
        shown = values if verbose else _first_of_each_reason(values)
        rows = ((cell(v.name), cell(v.type, "cyan"), cell(v.why, "dim")) for v in shown)
        yield table(f"{title} ({number(len(values))})", "type", "why", rows=rows)
        if len(shown) < len(values):
            yield f"and {number(len(values) - len(shown))} more (-v)"
    yield from (cell(f"note: {note}") for note in found.notes)


def _first_of_each_reason(values: list[Weighed]) -> list[Weighed]:
    """Returns the first values of each reason, as many as fit."""
    places: dict[str, list[int]] = {}
    for i, v in enumerate(values):
        places.setdefault(v.why, []).append(i)
    each = max(1, _ROWS // max(1, len(places)))
    return [values[i] for i in sorted(i for found in places.values() for i in found[:each])]
