"""Rewrite rules of onnxscript, applied by this engine.

A rule matches, and builds its replacement, on an onnx_ir model that is a view of the program; what
it answers is emitted as bindings and put in by one attempt, like the answer of a law of our own. So
it is typed, numbered, explained, bisected and proved.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.interop.given import is_instance
from onnxgrad.ir.interop.onnx_ir_view import OnnxIrView, detach
from onnxgrad.ir.program import Program
from onnxgrad.rewrite.attempt import Attempt, Touched
from onnxgrad.rewrite.onnxscript_replacement import OnnxscriptReplacement
from onnxgrad.rewrite.slips import slip
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Fuel

# how onnxscript begins to say that a rule wants another version of a domain than the model has
_OTHER_OPSET = "Multiple versions of opset"


@dataclass(frozen=True)
class OnnxscriptRule:
    """A rule of onnxscript's, under the name that reports call it by."""

    name: str
    rule: Any

    @property
    def author(self) -> Any:
        """What is asked whose rule it is: the caller's."""
        return self.rule.try_rewrite


def onnxscript_rules(given: Any, name: str = "onnxscript-rule") -> tuple[OnnxscriptRule, ...]:
    """The rules of a RewriteRule or RewriteRuleSet; none of anything else. `name` is for those
    that have none.

    Raises InputError for a rule that makes a local function of what it matches.
    """
    if is_instance(given, "onnxscript.rewriter", "RewriteRuleSet"):
        rules = list(given)
    elif is_instance(given, "onnxscript.rewriter", "RewriteRule"):
        rules = [given]
    else:
        return ()
    for rule in rules:
        if rule.as_function:
            raise InputError(
                f"onnxscript rule {rule.name or name} makes local functions (as_function): "
                "onnxgrad.outline_as does that"
            )
    return tuple(OnnxscriptRule(rule.name or name, rule) for rule in rules)


def apply_onnxscript_rules(program: Program, rules: Iterable[OnnxscriptRule], trace: Trace) -> None:
    """Fire `rules` in every block until none matches, the first that fires at each node; none
    fires on what it made itself.

    Raises InputError where onnx_ir cannot hold the program, RuleFailed for rules that do not end.
    """
    work = _Work(program, tuple(rules), trace)
    while work.sweep() and not trace.stopped:
        pass


class _Work:
    """The sweeps of some rules over a program."""

    def __init__(self, program: Program, rules: tuple[OnnxscriptRule, ...], trace: Trace) -> None:
        self.program = program
        self.rules = rules
        self.trace = trace
        self.fuel = Fuel(sum(len(block.bindings) for block in program.blocks()))
        self.view: OnnxIrView

    def sweep(self) -> int:
        """Every rule at every node once; how many fired."""
        import onnxscript.optimizer

        fired = 0
        self.view = OnnxIrView.of(self.program)
        for graph, block in list(self.view.blocks.items()):
            # rules ask a Constant for its value there
            onnxscript.optimizer.basic_constant_propagation(graph)
            self._visit(graph, "graph_pre_visitor")
            for node, binding in self.view.nodes(graph):
                fired += self._at(graph, block, node, binding)
                if self.trace.stopped:
                    return fired
            self._visit(graph, "graph_post_visitor")
        return fired

    def _visit(self, graph: Any, when: str) -> None:
        for named in self.rules:
            visit = getattr(named.rule, when)
            if visit is not None:
                visit()

    def _at(self, graph: Any, block: BindingBlock, node: Any, binding: Binding) -> bool:
        """Fire the first rule that matches at a node, and say whether one did."""
        for named in self.rules:
            if self.trace.made.get(binding) == named:
                continue
            started = time.perf_counter()
            touched = self._fire(graph, block, node, binding, named)
            self.trace.of(named.name).seconds += time.perf_counter() - started
            if touched is not None:
                self.fuel.burn(named.name, named.author, self.program, self.trace)
                return True
        return False

    def _fire(
        self, graph: Any, block: BindingBlock, node: Any, binding: Binding, named: OnnxscriptRule
    ) -> Touched | None:
        delta = self._asked(graph, node, binding, named)
        if delta is None:
            return None
        answer = OnnxscriptReplacement(delta, self.view, block)
        attempt = Attempt(named.name, binding, block, answer.sources, named.author, maker=named)
        touched = attempt(self.trace, answer.build, answer.checked)
        if touched is None:
            for made in delta.new_nodes:
                detach(made)
        elif answer.settle(node):
            self.trace.rounded = True
        return touched

    def _asked(self, graph: Any, node: Any, binding: Binding, named: OnnxscriptRule) -> Any:
        """What the rule answers at a node, None where it does not fire. Raises RuleFailed for what
        the rule raises.
        """
        self.trace.of(named.name).tried += 1
        told = _Told(named.name, binding, self.trace)
        try:
            return named.rule.try_rewrite(self.view.model, graph, node, tracer=told)
        except Exception as error:  # noqa: BLE001  # the rule is the user's program
            reason = " ".join(str(error).split())[:200]
            if isinstance(error, ValueError) and reason.startswith(_OTHER_OPSET):
                self.trace.missed(named.name, binding, reason)
                return None
            slip(self.trace, named.name, binding, self.program, error, named.author)
            return None


@dataclass(frozen=True)
class _Told:
    """What a rule tells while it is tried: onnxscript's tracer."""

    name: str
    where: Binding
    trace: Trace

    def log(self, rule: Any, graph: Any, node: Any, match: Any, status: Any) -> None:
        """A match, or one that the rule's condition or its replacement refuses."""
        if status.name == "NO_MATCH":
            return
        self.trace.of(self.name).matched += 1
        if status.name != "SUCCESS":
            self.trace.missed(self.name, self.where, match.reason or "its condition does not hold")
