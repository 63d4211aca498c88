"""What a proof found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxgrad.verify.compare import Difference, worst


@dataclass(frozen=True)
class Leg:
    """One way of comparing: whether it ran, and if not (or only in part) why."""

    name: str
    ran: bool
    why: str = ""
    cases: int = 0
    worst: Difference | None = None

    def to_dict(self) -> dict[str, Any]:
        found = None if self.worst is None else self.worst.to_dict()
        return {"ran": self.ran, "why": self.why, "cases": self.cases, "worst": found}

    def __str__(self) -> str:
        if not self.ran:
            return f"{self.name} leg: did not run ({self.why})"
        result = "bit-identical" if self.worst is None or self.worst.rel == 0 else f"worst {self.worst}"
        return f"{self.name} leg: {self.cases} case{'s' * (self.cases != 1)}, {result}" + (
            f" ({self.why})" if self.why else ""
        )


@dataclass(frozen=True)
class Case:
    """One set of feeds: what was chosen for the symbolic dimensions, and the seed (None: the user's own inputs)."""

    dims: Mapping[str, int]
    seed: int | None

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.dims.items())
        return f"{'given inputs' if self.seed is None else f'seed {self.seed}'}{f', {sizes}' if sizes else ''}"


@dataclass(frozen=True)
class Report:
    """`ok` is the verdict; `differences` holds the worst difference of every output and leg, `unstable` the outputs
    whose own noise hides a lot.
    """

    ok: bool
    differences: tuple[Difference, ...]
    legs: Mapping[str, Leg]
    cases: tuple[Case, ...]
    provider: str = "cpu"
    unstable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def worst(self) -> Difference | None:
        """The difference that fails most, or comes nearest to failing."""
        return worst(self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's types (NaN and infinity as strings)."""
        found = self.worst
        return {
            "ok": self.ok,
            "provider": self.provider,
            "worst": None if found is None else found.to_dict(),
            "legs": {name: leg.to_dict() for name, leg in self.legs.items()},
            "cases": [{"dims": dict(case.dims), "seed": case.seed} for case in self.cases],
            "differences": [difference.to_dict() for difference in self.differences],
            "unstable": list(self.unstable),
            "notes": list(self.notes),
            "noise": {name: str(value) if value == float("inf") else value for name, value in self.noise.items()},
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        lines = [
            f"{'equal' if self.ok else 'DIFFERENT'} on {self.provider}"
            + (f": {self.worst}" if self.worst and not self.ok else "")
        ]
        lines += [f"  {leg}" for leg in self.legs.values()]
        lines += [f"  ran with {case}" for case in self.cases]
        lines += [
            f"  unstable output {name}: the original disagrees with itself by {self.noise.get(name, 0.0):.1e}"
            for name in self.unstable
        ]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)
