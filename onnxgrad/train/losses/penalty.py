"""Penalties on the weights, to add to another loss.

CrossEntropy() + 1e-4 * L2Penalty("*.weight,!norm.*")
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Loss, OverBatch, weighted_sum
from onnxgrad.train.losses.place import Place, is_float, wide
from onnxgrad.wording import what_there_is


@dataclass(frozen=True)
class _Penalty(Loss):
    """A sum over weights. params: names and globs; a `!` excludes names."""

    params: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.params.strip(", "):
            raise InputError(
                f'{self.name}: params must be names or globs, like "*.weight,!norm.*", not '
                f"{self.params!r}"
            )

    @property
    def over_batch(self) -> OverBatch | None:
        """Constant: the same for every batch."""
        return "constant"

    def emit(self, place: Place) -> Var:
        """Emits the sum. Raises InputError for an entry that matches no floating-point weight of
        the model.
        """
        weights = {
            k: v
            for k, v in place.own.items()
            if is_float(v) and (v.initializer is not None or v.is_constant)
        }
        chosen: dict[str, Var] = {}
        for entry in (part.strip() for part in re.split("[,;]", self.params) if part.strip()):
            pattern = entry.removeprefix("!")
            meant = {k: v for k, v in weights.items() if k == pattern or fnmatchcase(k, pattern)}
            if not meant:
                raise InputError(
                    f"{self.name}: '{pattern}' matches no floating-point weight of the model"
                    f"{what_there_is(weights)}"
                )
            chosen = (
                {k: v for k, v in chosen.items() if k not in meant}
                if entry[0] == "!"
                else {**chosen, **meant}
            )
        if not chosen:
            raise InputError(f"{self.name}: '{self.params}' leaves no weight")
        return weighted_sum([(1.0, self.of(self.read(place, w))) for w in chosen.values()])

    def read(self, place: Place, w: Var) -> Var:
        """Returns the array to penalise for a weight, in the precision of losses."""
        return wide(w)

    @abstractmethod
    def of(self, w: Var) -> Var:
        """Returns the penalty of one weight."""


@dataclass(frozen=True)
class L1Penalty(_Penalty):
    """sum |w|, with a derivative of 0 at 0."""

    name: ClassVar[str] = "l1_penalty"

    def of(self, w: Var) -> Var:
        """Returns sum |w|."""
        return op.ReduceL1(w, keepdims=0)


@dataclass(frozen=True)
class L2Penalty(_Penalty):
    """1/2 sum w^2. Times lambda, its gradient equals that of weight_decay=lambda in SGD."""

    name: ClassVar[str] = "l2_penalty"

    def of(self, w: Var) -> Var:
        """Returns 1/2 sum w^2."""
        return 0.5 * op.ReduceSumSquare(w, keepdims=0)


@dataclass(frozen=True)
class ProximalPenalty(L2Penalty):
    """1/2 sum (w - anchor)^2, the term of FedProx: `mu * ProximalPenalty("*")` keeps weights near
    those with which a round of federated training began. An input `<weight>.anchor` for each weight
    holds them: `fit(..., constants=trainer.anchors)`.
    """

    name: ClassVar[str] = "proximal_penalty"

    def read(self, place: Place, w: Var) -> Var:
        """Returns w - anchor."""
        w, name = wide(w), w.name
        anchor = place.labels(f"{name}.anchor", w.dtype, w.shape or (), name)
        place.anchors[anchor.name] = name
        return w - anchor
