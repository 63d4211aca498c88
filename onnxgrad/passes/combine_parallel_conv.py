"""Parallel Convs into one (Relay's CombineParallelConv2D; here 1-D and 3-D as well)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.binding import Binding
from onnxgrad.laws.parallel.conv import convs_of_one_input
from onnxgrad.laws.parallel.splits import lift_above_split
from onnxgrad.passes.base import FamilyPass, Merge, register
from onnxgrad.rewrite.combine import Family
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class CombineParallelConv(FamilyPass):
    """Conv(x, w1, c1), Conv(x, w2, c2), ... = split(Conv(x, concat(w1, w2, ...), concat(c1, c2,
    ...))), in 1-D to 3-D.

    A branch without bias gets one of -0.0. Groups are concatenated group by group and the outputs
    gathered back. `merge`: always, auto (see `laws.parallel.conv.reason_to_stay_apart`) or never.
    `check` may refuse a group of branches (Python only).
    """

    name: ClassVar[str] = "combine-parallel-conv"
    merge: Merge = "auto"

    @property
    def family(self) -> Family:
        """See `laws.parallel`."""
        return convs_of_one_input(self.merge)

    def follow(self, emitted: Sequence[Binding], trace: Trace) -> None:
        """Biases and scales per channel, and activations, move above the Split."""
        lift_above_split(emitted, trace)
