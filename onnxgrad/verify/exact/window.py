"""A window: one rewrite as two small graphs over the same values, and the decision about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from onnx import ModelProto

from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.wording import counted

Verdict: TypeAlias = Literal["exact", "rounded", "sampled", "refuted"]
Kind: TypeAlias = Literal["positive", "nonzero", "equal sizes", "ones", "equal"]


@frozen
class Premise:
    """A fact about a value that a rewrite takes from outside its window. `other`: the second value
    of "equal sizes" and "equal".
    """

    kind: Kind
    value: str
    other: str = ""

    def __str__(self) -> str:
        return f"{self.value} and {self.other}: {self.kind}" if self.other else (
            f"{self.value}: {self.kind}"
        )  # fmt: skip


@frozen
class Window:
    """One rewrite: the graph before and after, over the same boundary values.

    `old`, `new`: their graph inputs are the boundary values, typed where known, under the same
    names in both; their initializers are the constants that the window reads. `claims`: pairs of
    outputs (of `old`, of `new`) that the rewrite says are equal. `premises`: facts from outside.
    `witnesses`: for each initializer of `new` that is computed, a model without inputs, whose
    initializers are those of `old`, and whose only output is that initializer's exact value.
    `made`: initializers of `new` that the rewrite computed; those without a witness get one if a
    small graph over constants of `old` is found.
    `where`, `rule`, `number`: the place, the rule and the number of the rewrite, for reports.
    """

    old: ModelProto
    new: ModelProto
    claims: tuple[tuple[str, str], ...]
    premises: tuple[Premise, ...] = ()
    witnesses: Mapping[str, ModelProto] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    where: str = ""
    rule: str = ""
    number: int = 0


@frozen
class Decision(Plain):
    """The verdict of exact evaluation about a window.

    `verdict`: "exact" (the same algebra), "rounded" (the same algebra, and the stored weights
    `rounded` are within the rounding of their exact values), "sampled" (not decided: `stopped_by`
    names the operator or the reason), or "refuted" (the claims differ, as `stopped_by` says).
    `bound`: an upper bound of the chance that different algebra counts as equal. `sizes`: the sizes
    of each evaluation. `partial`: divisors, roots, logarithms and exponentials that only the new
    side has.
    """

    json_keys = "verdict rounded stopped_by bound sizes partial"

    verdict: Verdict
    rounded: tuple[str, ...] = ()
    stopped_by: str = ""
    bound: float = 0.0
    sizes: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict in ("exact", "rounded")

    @property
    def lines(self) -> list[str]:
        """Returns the decision about two models as lines of text."""
        if not self:
            where = "not the same algebra" if self.verdict == "refuted" else "not decided"
            return [f"exact: {where}: {self.stopped_by}"]
        sizes = [text for text in self.sizes if text]
        at = f" at {'; '.join(sizes)}" if sizes else ""
        words = "the same algebra" if self.verdict == "exact" else str(self)
        found = [f"exact: {words}{at} (chance of error below {self.bound:.0e})"]
        if self.partial:
            found.append(f"  only in the second model: {', '.join(self.partial)}")
        return found

    def __str__(self) -> str:
        if self.verdict == "rounded":
            return f"exact up to rounding of {counted(len(self.rounded), 'weight')}"
        return f"{self.verdict}: {self.stopped_by}" if self.stopped_by else self.verdict
