"""`inspect --weights`: what of a model `params` means, what it leaves out, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnxgrad.grad.nested_weights import hoist, nested_constants
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.request import weigh
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.options import known_keywords
from onnxgrad.report.parts import Part, cell, heading, number, table
from onnxgrad.report.rendering import Rendered

_ROWS = 30  # of each kind without -v


@dataclass(frozen=True)
class Weighed:
    """A floating-point constant: a weight or not, and why."""

    name: str
    type: str
    is_weight: bool
    why: str


@dataclass(frozen=True)
class Weights(Rendered):
    """The floating-point constants of a model that reach its outputs, in its order."""

    model: str
    values: tuple[Weighed, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        rows = {kind: [v for v in self.values if v.is_weight is kind] for kind in (True, False)}
        listed = {
            kind: [{"name": v.name, "type": v.type, "why": v.why} for v in found]
            for kind, found in rows.items()
        }
        return {"model": self.model, "weights": listed[True], "left_out": listed[False]}

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The weights, then what is left out; without -v the first of each reason."""
        yield heading(self.model)
        for is_weight, title in ((True, "weight"), (False, "left out")):
            found = [v for v in self.values if v.is_weight is is_weight]
            if not found and not is_weight:
                return
            rows = table(f"{title} ({number(len(found))})", "type", "why")
            shown = found if verbose else _first_of_each_reason(found)
            for v in shown:
                rows.add_row(cell(v.name), cell(v.type, "cyan"), cell(v.why, "dim"))
            yield rows
            if len(shown) < len(found):
                yield f"and {number(len(found) - len(shown))} more (-v)"


def _first_of_each_reason(values: list[Weighed]) -> list[Weighed]:
    """As many of each reason as fit."""
    each = max(1, _ROWS // max(1, len({v.why for v in values})))
    seen: Counter[str] = Counter()
    found = []
    for v in values:
        seen[v.why] += 1
        if seen[v.why] <= each:
            found.append(v)
    return found


@known_keywords
def weights(model: ModelLike) -> Weights:
    """Which floating-point constants of the main graph and of nested ones are weights. Elements are
    read where operand and name do not tell, nothing is run. Raises InputError when the model cannot
    be read.
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
