"""Converts laws of this package to rewrite rules of onnxscript.

At each node, such a rule reads the surrounding region as a program, tries the law there, and
returns the nodes that it emitted. A law sees its pattern and a few more nodes. If it needs to know
nodes further away, it declines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import canonical
from onnxgrad.ir.var import Var
from onnxgrad.plugins.onnxscript.onnx_ir_graphs import OUTSIDE, OnnxIrRegion, is_plain
from onnxgrad.rewrite.pattern import Call, Pattern
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule, fire

# how many operators above its pattern a law may look at
_MORE = 3


def onnxscript_rule(law: Rule) -> Any:
    """Returns a law as an onnxscript.rewriter.RewriteRule."""
    from onnxscript.rewriter import RewriteRule

    matcher = _LawMatcher(law)
    # the pattern is the law's own, and what matches it is the answer
    made = RewriteRule(
        lambda op, answer: op.Law(answer, _domain="onnxgrad"),
        lambda op, answer: answer.emit(op),
        matcher=lambda pattern: matcher,
        name=law.name,
    )
    made.commute = lambda: [made]  # a law tries operand orders itself
    return made


class _LawMatcher:
    """A PatternMatcher of onnxscript's: decides whether a law applies at a node."""

    def __init__(self, law: Rule) -> None:
        self.law = law
        self.depth = _depth(law.pattern) + _MORE

    def match(
        self, model: Any, graph: Any, node: Any, *, verbose: int = 0, remove_nodes: bool = True
    ) -> Any:
        """A MatchResult with the law's answer, or the reason why there is none."""
        from onnxscript.rewriter import MatchResult

        found = MatchResult()
        if not (self._may_match(node) and is_plain(node)):
            return found.fail(f"{self.law.name} does not match {node.op_type}")
        answer = self._answer(model, graph, node)
        if isinstance(answer, str):
            return found.fail(answer)
        for gone in answer.gone:
            found.add_node(gone)
        found.outputs.append(answer.replaced)
        found.bind("answer", answer)
        return found

    def _may_match(self, node: Any) -> bool:
        if self.law.shrinks is None and self.law.name in _made_by(node):
            return False  # it would rewrite its own answer for ever
        calls = self.law.pattern.calls
        return not calls or any(_may_match(calls, v) for v in node.outputs)

    def _answer(self, model: Any, graph: Any, node: Any) -> _Answer | str:
        try:
            region = OnnxIrRegion.of(model, graph, node, self.depth)
        except InputError as error:
            return str(error)
        block, trace = region.program.main, Trace(explain=True)
        before = list(block.outputs)
        if fire(self.law, region.root, trace) is None:
            reasons = [reason for _, _, reason in trace.declined]
            return reasons[0] if reasons else f"{self.law.name} does not match"
        block.schedule()
        changed = [i for i, v in enumerate(before) if block.outputs[i] is not v]
        if len(changed) != 1 or before[changed[0]].definition is not region.root:
            return f"{self.law.name} replaces other values than the node's result"
        answer = _Answer(region, before[changed[0]], block.outputs[changed[0]])
        if node.op_type == "Identity" and all(b.op == "Identity" for b in answer.emitted):
            return "the replacement would only be another Identity"
        return answer


@frozen
class _Answer:
    """A law's rewrite of a region: `new` replaces `old`."""

    region: OnnxIrRegion
    old: Var
    new: Var

    @property
    def replaced(self) -> Any:
        """The value of onnx_ir that is replaced."""
        return self.region.values[self.old]

    @property
    def gone(self) -> Sequence[Any]:
        """The nodes that nothing reads any more, readers first."""
        left = self.region.program.main.bindings
        return [node for b, node in self.region.nodes.items() if b not in left]

    @property
    def emitted(self) -> list[Binding]:
        """The new bindings, operands first."""
        bindings = self.region.program.main.bindings
        return [b for b in bindings if b not in self.region.nodes and b.domain != OUTSIDE]

    def emit(self, op: Any) -> Any:
        """Emits the new bindings through onnxscript's builder. Returns the value that replaces the
        old one. It belongs to a new node, because it gets the old name.
        """
        made: dict[Var, Any] = {}
        for binding in self.emitted:
            self._emit(op, binding, made)
        return made[self.new] if self.new in made else op.Identity(self._value(op, self.new, made))

    def _emit(self, op: Any, binding: Binding, made: dict[Var, Any]) -> None:
        import onnx_ir

        given = {a.name: onnx_ir.serde.deserialize_attribute(a) for a in binding.node.attribute}
        found = op.op(
            binding.op,
            *(None if v is None else self._value(op, v, made) for v in binding.inputs),
            _domain=binding.domain,
            _version=binding.version if binding.domain else None,
            _outputs=len(binding.outputs),
            **given,
        )
        results = [found] if len(binding.outputs) == 1 else found
        made.update((v, new) for v, new in zip(binding.outputs, results) if v is not None)

    def _value(self, op: Any, v: Var, made: dict[Var, Any]) -> Any:
        """Returns the onnx_ir value for one that a new node reads. Emits a new constant."""
        import onnx_ir

        known = made.get(v) or self.region.values.get(v)
        if known is None and v.initializer is not None:
            tensor = onnx_ir.serde.deserialize_tensor(v.initializer)
            known = made[v] = op.Constant(value=tensor)
        return known


def _made_by(node: Any) -> Sequence[str]:
    """The rules that made a node, of those in the present run and earlier ones."""
    from onnxscript.rewriter import RULE_NAME_TAG

    names: str = node.metadata_props.get(RULE_NAME_TAG, "")
    return [name.strip() for name in names.split(",")]


def _may_match(calls: Sequence[Call], value: Any) -> bool:
    """Whether the operators that one of the calls names are present, in any order of operands. It
    is the cheapest test.
    """
    node = None if value is None else value.producer()
    return node is not None and any(
        node.op_type in call.ops
        and canonical(node.domain) == call.domain
        and all(any(_may_match(inner, v) for v in node.inputs) for _, inner in call.computed)
        for call in calls
    )


def _depth(pattern: Pattern) -> int:
    """Returns the number of operators on the longest path through a pattern."""
    return max(map(_depth, pattern.inside), default=0) + isinstance(pattern, Call)
