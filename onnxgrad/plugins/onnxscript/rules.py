"""Applies rewrite rules of onnxscript in this engine.

A rule matches, and builds its replacement, on an onnx_ir model that is a view of the program. The
replacement is emitted as bindings and inserted by one attempt, like that of any other rule, so it
is typed, numbered, explained, bisected and proved.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx import AttributeProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.frozen import frozen
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.emitter import append, emitter
from onnxgrad.ir.function_bodies import import_opset
from onnxgrad.ir.model_kinds import is_instance
from onnxgrad.ir.origins import use_value
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var
from onnxgrad.passes.user_laws import ProgramLaw
from onnxgrad.plugins.onnxscript.onnx_ir_graphs import OnnxIrView, describe, detach
from onnxgrad.rewrite.attempt import Attempt, Touched, closes_cycle, fits
from onnxgrad.rewrite.slips import slip
from onnxgrad.rewrite.trace import Trace, decline
from onnxgrad.rewrite.worklist import Fuel
from onnxgrad.wording import one_line


class OnnxscriptReplacement:
    """A rule's answer (`delta`, onnxscript's ReplacementSubgraph) for a match in `block`."""

    def __init__(self, delta: Any, view: OnnxIrView, block: BindingBlock) -> None:
        self.delta = delta
        self.view = view
        self.block = block
        # the bindings of the match, operands first
        self.sources = [view.bindings[n] for n in reversed(delta.match.nodes) if n in view.bindings]
        self._values: dict[Any, Var] = {}
        self._bindings: dict[Any, Binding] = {}
        self._constants: list[Var] = []

    def build(self) -> Mapping[Var, Var]:
        """Emits the new nodes. Returns the replacement of each value of the match. Raises Decline
        if the nodes cannot be bindings of this block.
        """
        import onnxscript.optimizer

        for b in self.sources:  # the rule may have read the value of each constant
            for v in b.reads():
                use_value(v)
        onnxscript.optimizer.basic_constant_propagation(self.delta.new_nodes)
        for value in self.delta.new_initializers:
            self._fix(value)
        for node in self.delta.new_nodes:
            if node.op_type == "Constant" and node.outputs[0].const_value is not None:
                self._fix(node.outputs[0])
            else:
                self._emit(node)
        pairs = zip(self.delta.match.outputs, self.delta.new_outputs, strict=True)
        return {self._var(old): self._var(new) for old, new in pairs}

    def checked(self, answer: Mapping[Var, Var]) -> Mapping[Var, Var]:
        """Returns the replacements of values that are read. Raises Decline for a value of another
        type or block, or for a cycle.
        """
        found = {old: new for old, new in answer.items() if new is not old and old.use_count}
        for old, new in found.items():
            if old.block is not self.block:
                raise decline(f"its match reaches into another graph, at {old.name}")
            if old.type is not None and new.type is not None and not fits(old.type, new.type):
                raise decline(f"it replaces {old.name}: {old.type} by a value of type {new.type}")
        if closes_cycle(found):
            raise decline("its replacement reads the replaced value")
        return found

    def settle(self, node: Any) -> bool:
        """Finishes a replacement: imports its domains and updates the view. `node` is the node
        where the rule was tried. Returns whether the replacement added floating-point constants.
        """
        for domain, version in sorted(self.delta.used_opsets, key=str):
            import_opset(self.block, domains.canonical(domain), version or 1)
        for value, var in self._values.items():
            self.view.values[value] = var
            value.name = var.name
            describe(value, var)
        self.view.bindings.update(self._bindings)
        kept = []
        for made in self.delta.new_nodes:
            if made in self._bindings and not self._bindings[made].is_live:
                detach(made)
            else:
                kept.append(made)
        pairs = zip(self.delta.match.outputs, self.delta.new_outputs, strict=True)
        self.view.replace(node, kept, {old: new for old, new in pairs if old is not new})
        return any(v.use_count and v.dtype in FLOAT_DTYPES for v in self._constants)

    def _fix(self, value: Any) -> None:
        import onnx_ir

        tensor = onnx_ir.serde.serialize_tensor(value.const_value)
        var = constant(self.block.program.array(tensor), name=value.name or "const")
        self._values[value] = var
        self._constants.append(var)

    def _emit(self, node: Any) -> None:
        domain, op_type = domains.canonical(node.domain), node.op_type
        version = self.block.opsets.get(domain, 0)
        schema = attributes.schema(op_type, version, domain)
        if schema is None and not domain and not attributes.is_of_onnxruntime(op_type, version):
            raise decline(f"it builds {op_type}, which opset {version} does not have")
        inputs = [None if v is None else self._var(v) for v in node.inputs]
        given = [(name, _attribute(op_type, a)) for name, a in node.attributes.items()]
        present = [v.name != "" for v in node.outputs]
        try:
            binding = append(emitter(), op_type, domain, schema, inputs, given, present)
        # caused by its types, or by an empty attribute that no schema describes
        except (InternalError, TypeError, ValueError) as error:
            raise decline(f"it builds {op_type} wrongly: {error}") from error
        self._bindings[node] = binding
        for value, var in zip(node.outputs, binding.outputs, strict=True):
            if var is not None:
                self._values[value] = var

    def _var(self, value: Any) -> Var:
        found = self._values.get(value) or self.view.values.get(value)
        if found is None:
            name = getattr(value, "name", value)
            raise decline(f"it reads a value that the graph does not have: {name}")
        return found


def _attribute(op_type: str, attribute: Any) -> Any:
    """Returns an attribute of a new node in the form that emission accepts. Raises Decline for a
    graph.
    """
    import onnx_ir

    if attribute.is_ref():
        return attributes.RefAttr(attribute.ref_attr_name)
    proto = onnx_ir.serde.serialize_attribute(attribute)
    if proto.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise decline(f"it builds {op_type} with a nested graph")
    return attributes.read(proto)


# onnxscript's error begins like this if a rule needs another version of a domain than the model has
_OTHER_OPSET = "Multiple versions of opset"


@frozen
class OnnxscriptRule(ProgramLaw):
    """A rule of onnxscript, with its name in reports."""

    name: str
    rule: Any

    @classmethod
    def apply(cls, laws: Sequence[OnnxscriptRule], program: Program, trace: Trace) -> None:
        """Applies all rules at each node."""
        apply_onnxscript_rules(program, laws, trace)

    @property
    def summary(self) -> str:
        """The name, because these rules have no equation."""
        return f"{self.name}, a rule of onnxscript"

    @property
    def author(self) -> Any:
        """The function by which the rule is recognised as a caller's."""
        return self.rule.try_rewrite


def onnxscript_rules(given: Any, name: str = "") -> tuple[OnnxscriptRule, ...]:
    """Returns the rules of a RewriteRule or RewriteRuleSet, an empty tuple for anything else.
    `name` is used for rules without a name.

    Raises InputError for a rule that turns its match into a local function.
    """
    name = name or "onnxscript-rule"
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
    """Applies `rules` in every block until none matches. At each node the first matching rule is
    applied, but never to nodes that it emitted itself.

    Raises InputError if onnx_ir cannot hold the program, and RuleFailed if rules do not terminate.
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
        """Tries every rule at every node once. Returns the number of rewrites."""
        import onnxscript.optimizer

        fired = 0
        self.view = OnnxIrView.of(self.program)
        for graph, block in list(self.view.blocks.items()):
            # rules read the values of Constants there
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
        """Applies the first rule that matches at a node. Returns whether one did."""
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
        delta = self._answer_of(graph, node, binding, named)
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

    def _answer_of(self, graph: Any, node: Any, binding: Binding, named: OnnxscriptRule) -> Any:
        """The rule's answer at a node, None if it does not apply. Raises RuleFailed if the rule
        raises an error.
        """
        self.trace.of(named.name).tried += 1
        tracer = _Tracer(named.name, binding, self.trace)
        try:
            return named.rule.try_rewrite(self.view.model, graph, node, tracer=tracer)
        except Exception as error:  # noqa: BLE001  # the rule is the user's program
            reason = one_line(error, 200)
            if isinstance(error, ValueError) and reason.startswith(_OTHER_OPSET):
                self.trace.missed(named.name, binding, reason)
                return None
            slip(self.trace, named.name, binding, self.program, error, named.author)
            return None


@frozen
class _Tracer:
    """onnxscript's tracer: records the tries of a rule."""

    name: str
    where: Binding
    trace: Trace

    def log(self, rule: Any, graph: Any, node: Any, match: Any, status: Any) -> None:
        """Records a match, and a near miss if the rule's condition or replacement refuses it."""
        if status.name == "NO_MATCH":
            return
        self.trace.of(self.name).matched += 1
        if status.name != "SUCCESS":
            self.trace.missed(self.name, self.where, match.reason or "its condition does not hold")
