"""The rows of a program as far as they have been followed, and how nodes are named in errors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from onnxgrad.batching.layout import NARROW, OWN, Layout, Refused, joined, refusing_types
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.batching.site import site_of
from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


@dataclass
class Batched:
    """The layouts of all values, and the results of the rules: nodes kept in place, computed with
    rows in front, or run once per row, each with the reason. Warnings name nodes that work along
    the rows.
    """

    layouts: dict[Var, Layout | None]
    sizes: RunTimeSizes
    in_place: int = 0
    shifted: Counter[str] = field(default_factory=Counter)
    scanned: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    never_empty: list[str] = field(default_factory=list)  # nodes at which no rows end the process
    # whether rows are followed into nested graphs and into the bodies of operators
    branches: bool = True
    mapped: bool = False  # if true, rows are computed separately and no warning is given

    def within(self) -> Batched:
        """Returns the state inside a nested graph, which computes its sizes by itself."""
        return replace(self, sizes=self.sizes.again())


def join(v: Var, layout: Layout, done: Batched) -> None:
    """The rows of a mapped input join an axis of it, so that nodes stay in place."""
    readers, blocks = list(v.users), v.blocks_returning()
    site = site_of(v, done.layouts, done.sizes)
    sizes = site.in_file(v)
    one = (*sizes[: layout.axis], *sizes[layout.axis + 1 :])
    front = v
    if layout.axis:
        rest = [i for i in range(len(sizes)) if i != layout.axis]
        front = op.Transpose(v, perm=[layout.axis, *rest])
        done.layouts[front] = OWN
    if one and 0 not in one and v.dtype not in NARROW:
        place = joined(one)
        try:
            with refusing_types():
                front = site.placed(front, one, place)
        except Refused as error:
            raise InputError(f"input '{v.name}': {error}") from None
        done.layouts[front] = place
    if front is v:
        return
    for reader in readers:
        for i in reader.places(v):
            reader.block.set_operand(reader, i, front)
    for block in blocks:
        if block is not v.block:
            block.return_instead(v, front)


def named(b: Binding, error: Exception) -> InputError:
    """Returns an error with the node at which it arose."""
    kind = type(error) if isinstance(error, InputError) else InputError
    return kind(f"{name_of(b)}: the batch cannot be opened here: {error}")


def name_of(b: Binding) -> str:
    """Returns the operator and the name of a node."""
    return f"{b.op} '{b.node.name or next(v.name for v in b.outputs if v is not None)}'"
