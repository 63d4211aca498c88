"""The backward walk: applies one rule to each binding, in reverse order, and adds up partials.

`backward` works on any block: the main graph, or the body of a loop whose rule differentiates the
body in a separate block. It emits through the current emitter (`emitting(block, share=True)`), so
equal partials are computed once. It emits only what a requested adjoint needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from onnxgrad.errors import InputError
from onnxgrad.grad.chains import closed
from onnxgrad.grad.formulas import partials
from onnxgrad.grad.paths import influenced, paths_of, reaching
from onnxgrad.grad.registry import GradientRule, missing, naming, rule_of
from onnxgrad.grad.safe_forms import Guard, guards_of
from onnxgrad.grad.sequences import add_up_sequences
from onnxgrad.grad.unbroadcast import fit
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.types import OptionalType, SequenceType, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up


class View(Protocol):
    """Returns the binding that a rule reads in place of a forward one, which checkpointing may
    recompute.
    """

    @property
    def originals(self) -> Mapping[Var, Var]:
        """The forward value that each operand of a stand-in replaces."""

    def begin(self, arrived: Mapping[Var, Sequence[Any]]) -> None:
        """Remembers the mapping to which the walk adds the partials of each value."""

    def __call__(self, b: Binding, g: Sequence[Any]) -> Binding:
        """Returns the binding to read for `b`, at which the adjoints `g` have arrived."""


class AsKept:
    """Keeps everything: a rule reads the forward binding itself."""

    originals: Mapping[Var, Var] = MappingProxyType({})

    def begin(self, arrived: Mapping[Var, Sequence[Any]]) -> None:
        """Does nothing, because nothing waits for partials."""

    def __call__(self, b: Binding, g: Sequence[Any]) -> Binding:
        """Returns `b`."""
        return b


class Intact(AsKept):
    """Keeps everything, and leaves the forward part as it is: rules, which would replace recurrent
    operators and convolutions, read a stand-in.
    """

    def __call__(self, b: Binding, g: Sequence[Any]) -> Binding:
        """Returns `b`, or for an operator that a rule replaces a copy that is not in the graph."""
        replaced = b.op in ("Conv", "GRU", "LSTM", "RNN") and not b.domain
        return Binding(b.node, b.block, list(b.inputs), b.outputs) if replaced else b


_AS_KEPT = AsKept()


def backward(
    block: BindingBlock, seeds: Mapping[Var, Any], wanted: Sequence[Var], *, view: View = _AS_KEPT
) -> dict[Var, Any]:
    """Returns the adjoints of `wanted`, except for values on which no seed depends.

    seeds: the given adjoints by value. wanted: may contain values of enclosing blocks. Raises
    InputError for an operator without a rule and for a rule that returns an impossible partial.
    """
    paths = paths_of(block)
    passed = reaching(block, seeds, paths)
    needed = influenced(block, wanted, paths) & passed
    arrived: dict[Var, list[Any]] = {v: [g] for v, g in seeds.items() if v in needed}
    adjoints: dict[Var, Any] = {}
    view.begin(arrived)
    at = emitter()
    guards = guards_of(block, paths, passed, seeds)
    bindings = list(block.bindings)  # emission into the same block must not be walked
    for b in reversed(bindings):
        # nothing flows from a result without elements, so rules need not handle empty ones
        if not any(v in arrived and 0 not in (v.shape or ()) for v in b.outputs if v is not None):
            continue
        g = [
            None if v is None or v not in arrived else _total(v, arrived, adjoints)
            for v in b.outputs
        ]
        needing = [v for v in paths[b] if v in needed]
        if not needing:
            continue
        # the bindings of a chain that is recomputed are not available yet
        follows = isinstance(view, AsKept) and b not in guards
        chained = closed(b, g[0], needed, wanted) if follows else []
        for v, partial in chained:
            arrived.setdefault(v, []).append(partial)
        if chained:
            continue
        rule = rule_of(b)
        if rule is None:
            raise missing(b)
        at.sources, at.made_by = (b,), f"gradient of {rule.name}"
        read = view(b, g)
        for v, partial in _partials(rule, b, read, g, set(needing), view.originals, guards.get(b)):
            arrived.setdefault(v, []).append(partial)
    at.sources, at.made_by = (), "gradient"
    return {v: _total(v, arrived, adjoints) for v in wanted if v in arrived}


def _total(v: Var, arrived: Mapping[Var, list[Any]], adjoints: dict[Var, Any]) -> Var:
    found = adjoints.get(v)
    if found is None:
        at = emitter()
        if v.definition is not None:
            at.sources, at.made_by = (v.definition,), "gradient"
        add = add_up_sequences if isinstance(v.type, (SequenceType, OptionalType)) else add_up
        found = adjoints[v] = add(arrived[v])
    return found


def _partials(
    rule: GradientRule,
    forward: Binding,
    read: Binding,
    g: Sequence[Any],
    needing: set[Var],
    originals: Mapping[Var, Var],
    guard: Guard | None,
) -> list[tuple[Var, Any]]:
    """Returns (value, partial) for each operand slot that needs a partial. The rule reads operands
    and outputs of the binding `read`.
    """
    if rule.kind == "vjp_blocks":
        with naming(rule, forward):
            return _block_partials(rule, read, g, needing, originals)
    wanted = [v in needing and rule.has_formula(i) for i, v in enumerate(forward.inputs)]
    result: list[tuple[Var, Any]] = []
    with naming(rule, forward):
        read = read if guard is None else guard.reading(read)
        found = partials(rule, read, g, wanted)
        for i, (v, partial) in enumerate(zip(forward.inputs, found, strict=True)):
            if v is None or partial is None or not wanted[i]:
                continue
            if guard is not None and isinstance(partial, Var):
                partial = guard.partial(partial, read, i)
            # the result of an operator that onnx does not know has no type
            untyped = v.type is None and rule.broadcasts
            if isinstance(partial, Var) and (untyped or isinstance(v.type, TensorType)):
                partial = fit(partial, v, rule.name, rule.broadcasts, forward, i)
            result.append((v, partial))
    return result


def _block_partials(
    rule: GradientRule,
    b: Binding,
    g: Sequence[Any],
    needing: set[Var],
    originals: Mapping[Var, Var],
) -> list[tuple[Var, Any]]:
    in_order = list(dict.fromkeys(v for v in b.reads() if originals.get(v, v) in needing))
    answer: Mapping[Var, Any] = rule.formula(b, tuple(g), in_order)
    for v in answer:
        if v not in in_order:
            raise InputError(
                f"the gradient rule of {rule.name} returned a partial of '{v.name}', which "
                "needs none"
            )
    return [(originals.get(v, v), partial) for v, partial in answer.items() if partial is not None]
