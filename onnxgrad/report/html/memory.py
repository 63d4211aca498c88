"""How many bytes of computed values are alive while a graph runs in its order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.report.html.graph import first_result, shown
from onnxgrad.report.html.tables import Section, section
from onnxgrad.report.parts import bytes_text

OPEN = 64  # what a size that nobody knows counts as, like where segments are chosen
_MOST = 4000  # points of a curve


def live_bytes(block: BindingBlock, sizes: Mapping[str, int]) -> list[tuple[Binding, int]]:
    """Each binding in order, and the bytes alive when it has run: its results and what is read
    later. Inputs and constants are not counted, nor what runs inside nested graphs.
    """
    block.schedule()
    order = [b for b in block.bindings if b.inputs]
    place = {b: i for i, b in enumerate(order)}
    dying: dict[int, list[int]] = {}
    alive, found = 0, []
    for i, b in enumerate(order):
        for v in b.outputs:
            if v is None or not (v.users or v.returned):
                continue
            size = _bytes(v, sizes)
            alive += size
            last = len(order) if v.returned else max(_reader(u, block, place) for u in v.users)
            dying.setdefault(last, []).append(size)
        found.append((b, alive))
        alive -= sum(dying.pop(i, ()))
    return found


def _reader(reader: Binding, block: BindingBlock, place: Mapping[Binding, int]) -> int:
    """When a value is read: of a reader in a nested graph, when the binding around it runs."""
    while reader.block is not block and reader.block.owner is not None:
        reader = reader.block.owner
    return place.get(reader, -1)


def _bytes(v: Var, sizes: Mapping[str, int]) -> int:
    if not isinstance(v.type, TensorType) or v.shape is None or not v.dtype:
        return OPEN
    known = [d if isinstance(d, int) else sizes.get(d or "", OPEN) for d in v.shape]
    return math.prod(known) * int(numpy_dtype(v.dtype).itemsize)


def memory(
    curves: Mapping[str, BindingBlock], sizes: Mapping[str, int] | None = None
) -> Section | None:
    """A curve for each block under its name; None where nothing is computed."""
    given = sizes or {}
    runs = {name: live_bytes(block, given) for name, block in curves.items()}
    if not all(runs.values()):
        return None
    peaks = {name: max(size for _, size in run) for name, run in runs.items()}
    said = ", ".join(f"{name} {bytes_text(peak)}" for name, peak in peaks.items())
    fixed = "".join(f", {name} = {size}" for name, size in given.items())
    note = (
        "Bytes of computed values alive after each node, in the order of the file; weights and "
        f"inputs are not counted; an open size counts as {OPEN}{fixed}. Peaks: {said}."
    )
    return section(
        "curves", "Memory over the run", note=note, curves=[_curve(n, r) for n, r in runs.items()]
    )


def _curve(name: str, run: Sequence[tuple[Binding, int]]) -> dict[str, Any]:
    """The curve as shares of the run, so that runs of different lengths lie over each other; of a
    long one the largest point of each stretch.
    """
    step = max(1, math.ceil(len(run) / _MOST))
    kept = [
        max(range(i, min(i + step, len(run))), key=lambda j: run[j][1])
        for i in range(0, len(run), step)
    ]
    return {
        "label": shown(name),
        "at": [round(i / max(len(run) - 1, 1), 5) for i in kept],
        "bytes": [run[i][1] for i in kept],
        "where": [shown(f"{run[i][0].op} {first_result(run[i][0])}") for i in kept],
    }
