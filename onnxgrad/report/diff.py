"""`diff`: everything in which one model differs from another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, asdict, dataclass, field
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.interop.given import settled
from onnxgrad.ir.load import ModelLike, proto_of
from onnxgrad.options import known_keywords
from onnxgrad.report.html.compared import diff_report
from onnxgrad.report.html.page import page
from onnxgrad.report.model_comparison import Comparison
from onnxgrad.report.parts import Part, cell, change, heading, line, number, table
from onnxgrad.report.rendering import Rendered

_LINES = 12  # of each kind without -v
_TITLES = {
    "model": "model",
    "interface": "inputs and outputs",
    "removed": "nodes removed",
    "added": "nodes added",
    "replaced": "nodes with another operator",
    "rewired": "nodes that read other values",
    "attributes": "attributes",
    "node_metadata": "nodes with other metadata",
    "order": "order",
    "initializers": "initializers",
    "functions": "functions",
    "other": "other",
}


@dataclass(frozen=True)
class Diff(Rendered):
    """Lines by kind of difference, and `operators` with their counts before and after. What is
    empty is equal.
    """

    model: list[str] = field(default_factory=list)
    interface: list[str] = field(default_factory=list)
    operators: dict[str, tuple[int, int]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    rewired: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    node_metadata: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    initializers: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    # what was compared, for the page: no part of what differs
    models: InitVar[tuple[ModelLike, ModelLike] | None] = None

    def __post_init__(self, models: tuple[ModelLike, ModelLike] | None) -> None:
        object.__setattr__(self, "_models", models)

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not any(asdict(self).values())

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return {"same": self.same, **asdict(self)}

    def to_html(self) -> str:
        """A page to look at, as one file that needs no network: both graphs with what differs.

        Raises InputError when one of the models does not load (`diff` itself asks for less).
        """
        models: tuple[ModelLike, ModelLike] | None = getattr(self, "_models", None)
        if models is None:
            raise InputError("this Diff does not know its models: take what onnxgrad.diff gives")
        found = diff_report(self, _TITLES, *models)
        return page(found["title"], [found])

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The operators whose count changed as a table, then the lines of each kind under a
        title.
        """
        if self.same:
            yield line("the same", "green")
            return
        if self.operators:
            made = table("operator", ">A", ">B", ">change")
            for op, (before, after) in sorted(
                self.operators.items(), key=lambda item: -abs(item[1][0] - item[1][1])
            ):
                made.add_row(cell(op), number(before), number(after), change(before, after))
            yield made
            yield ""
        for kind, title in _TITLES.items():
            lines: list[str] = getattr(self, kind)
            if not lines:
                continue
            yield heading(f"{title} ({number(len(lines))})")
            style = {"removed": "red", "added": "green"}.get(kind, "")
            for text in lines if verbose else lines[:_LINES]:
                yield cell(f"  {text}", style)
            if not verbose and len(lines) > _LINES:
                yield line(f"  and {len(lines) - _LINES} more (-v)", "dim")


@known_keywords
def diff(a: ModelLike, b: ModelLike) -> Diff:
    """What changed from model `a` to model `b`; neither is changed, run, or asked whether its
    operators exist.

    Nodes are matched by the name of their first output, initializers by name. Weights are compared
    by content, wherever they lie. Raises InputError when a model cannot be read, or its external
    data not.
    """
    a, b = settled(a), settled(b)
    (x, folder_x), (y, folder_y) = proto_of(a), proto_of(b)
    found = Comparison((folder_x, folder_y))
    found.models(x, y)
    return Diff(operators=found.operators(), **found.lines, models=(a, b))
