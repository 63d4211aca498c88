"""Finds chains of nodes that `--target-opset` may replace by operators of a newer opset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxgrad.ir.operator_index import bindings_of
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import roots
from onnxgrad.passes.rule_passes import raise_composites
from onnxgrad.rewrite.match import match_binding, may_match
from onnxgrad.rewrite.worklist import Rule, lacks
from onnxgrad.wording import counted, option


@dataclass(frozen=True)
class NewerOperators:
    """The number of chains that an operator of a newer opset may replace, and that opset, by
    operator. A law may still decline a chain for its dtype or sizes.
    """

    chains: Mapping[str, int] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> NewerOperators:
        """Returns the chains of a program, found by the laws of `raise-composites`."""
        chains: Counter[str] = Counter()
        opsets: dict[str, int] = {}
        for rule in raise_composites().laws:
            if rule.needs is not None and (found := _found(rule, program)):
                chains[rule.needs[0]] += found
                opsets[rule.needs[0]] = rule.needs[1]
        return NewerOperators(dict(chains.most_common()), opsets)

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


def _found(rule: Rule, program: Program) -> int:
    """Returns the number of bindings that match the pattern and whose opset lacks the operator."""
    return sum(
        lacks(rule, b)
        and may_match(rule.pattern, b)
        and next(match_binding(rule.pattern, b), None) is not None
        for root in roots(program)
        for b in bindings_of(root, rule.pattern.heads or ())
    )
