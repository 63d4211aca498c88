"""Finds chains of nodes that `--target-opset` may replace by operators of a newer opset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.passes.served_opsets import newer_chains
from onnxgrad.wording import counted, option


@frozen
class NewerOperators:
    """The number of chains that an operator of a newer opset may replace, and that opset, by
    operator. A law may still decline a chain for its dtype or sizes.
    """

    chains: Mapping[str, int] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> NewerOperators:
        """Returns the chains of a program, found by the laws of `raise-composites`."""
        found = newer_chains(program)
        return NewerOperators({name: n for (name, _), n in found.items()}, dict(found.keys()))

    @property
    def by_operator(self) -> dict[str, dict[str, int]]:
        """Returns the opset and the number of chains of each operator, for JSON."""
        return {name: {"opset": self.opsets[name], "chains": n} for name, n in self.chains.items()}

    def __str__(self) -> str:
        if not self.chains:
            return ""
        newest = max(self.opsets.values())
        each = ", ".join(f"{name} ×{n}" for name, n in self.chains.items())
        total = counted(sum(self.chains.values()), "chain")
        raised = option(f"--target-opset {newest}", f"target_opset={newest}")
        return f"opset {newest} has operators for {total} ({each}): try {raised}"
