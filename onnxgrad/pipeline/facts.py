"""What is known of one model: what a recipe requires, and what a lock keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto

from onnxgrad.ir.program import Program
from onnxgrad.ir.stats import stats_of
from onnxgrad.ir.var import Var

INPUT = "input"  # the model as it was given, to which the result is held


@dataclass(frozen=True)
class Latency:
    """Time over that of the model `against`, taken in turns: the median with its quartiles.
    `clock`: "CPU", or "wall" on a device that computes while the CPU waits.
    """

    against: str
    ratio: float
    low: float
    high: float
    clock: str = "CPU"

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return {
            "against": self.against,
            "ratio": rounded(self.ratio, 4),
            "low": rounded(self.low, 4),
            "high": rounded(self.high, 4),
            "clock": self.clock,
        }


@dataclass(frozen=True)
class Facts:
    """Counts are those of `ir.stats`, types as they are printed (`f32[N,4]`), opsets by domain.
    `worst`: the largest difference that the proof found, as a share of the largest value; `memory`:
    bytes at the peak of a run on the provider `memory_on`; these and `latency` are None where
    nothing was measured.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    opset: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int
    bytes: int
    worst: float | None = None
    latency: Latency | None = None
    memory: int | None = None
    memory_on: str | None = None

    @property
    def nodes(self) -> int:
        """How many there are, those of nested graphs and functions too."""
        return sum(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON's types; what was measured in the digits that mean something."""
        return {
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "opset": dict(self.opset),
            "nodes": self.nodes,
            "operators": dict(sorted(self.operators.items())),
            "parameters": self.parameters,
            "bytes": self.bytes,
            "worst": None if self.worst is None else rounded(self.worst, 2),
            "latency": None if self.latency is None else self.latency.to_dict(),
            "memory": self.memory,
            "memory_on": self.memory_on,
        }


def facts_of(program: Program, proto: ModelProto) -> Facts:
    """What can be told of a program, and of the `proto` that it is written as, without running
    it.
    """
    stats = stats_of(proto)
    return Facts(
        inputs={v.name: _type(v, default=v.initializer is not None) for v in program.main.inputs},
        outputs={v.name: _type(v) for v in program.main.outputs},
        opset={o.domain or "ai.onnx": o.version for o in proto.opset_import},
        operators=dict(sorted(stats.operators.items())),
        parameters=stats.parameters,
        bytes=stats.bytes,
    )


def _type(var: Var, *, default: bool = False) -> str:
    shown = "?" if var.type is None else str(var.type)
    return f"{shown} with default" if default else shown


def rounded(value: float, digits: int) -> float:
    """A number of so many significant digits."""
    return float(f"{value:.{digits}g}")
