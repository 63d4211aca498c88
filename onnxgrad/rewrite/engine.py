"""Rooted rules on a worklist: match, then guards, then build; one replacement last.

A rule is one-shot or shrinks a declared measure, so rewriting ends; fuel is the backstop and names the rule.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnxgrad.errors import InputError, InternalError, OnnxgradError, UnknownDtype
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.topological_order import depends_on
from onnxgrad.ir.types import TensorType
from onnxgrad.rewrite.match import Captured, heads, match_binding, value_of
from onnxgrad.rewrite.pattern import Pattern
from onnxgrad.rewrite.trace import Decline, Fuel, Trace

# firings allowed per binding of the block, plus a floor for tiny ones
_FUEL_PER_BINDING = 20
_FUEL_FLOOR = 1000


@dataclass(frozen=True)
class Measure:
    """A well-founded measure that each firing of a rule shrinks: a natural number computed from the block."""

    name: str
    of: Callable[[BindingBlock], int]


def count(*ops: str) -> Measure:
    """How many bindings of these operators there are; all bindings when none is named."""
    wanted = frozenset(ops)
    return Measure(
        f"number of {'/'.join(ops) or 'bindings'}",
        lambda block: sum(1 for b in block.walk() if not wanted or b.op in wanted),
    )


@dataclass(frozen=True)
class Rule:
    """A law: where it applies (`pattern`), what to build, and why it ends (`shrinks`, or None for one-shot)."""

    name: str
    pattern: Pattern
    build: Callable[..., Any]
    shrinks: Measure | None

    @property
    def law(self) -> str:
        """The first line of the rule's docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]


def rewrite(pattern: Pattern, *, shrinks: Measure | None = None) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function that receives the captures by name, and `root`, the matched binding, if it asks.

    The function returns the value that replaces the one which the pattern stands for, a tuple replacing all outputs of
    its binding, or a mapping of values to replacements. It leaves the match alone by returning None, that value itself,
    an empty mapping, or `decline("why")`. Anything else is an InputError that names the function. Without `shrinks` the
    rule is one-shot: it never fires on what it emitted itself.
    """
    if not isinstance(pattern, Pattern):
        raise InputError(f"a rule's pattern is written with P, as in P.Relu(x), not as {type(pattern).__name__}")
    return lambda build: Rule(build.__name__, pattern, build, shrinks)


def apply_rules(
    block: BindingBlock, rules: Sequence[Rule], trace: Trace, *, where: Callable[[Binding], bool] | None = None
) -> int:
    """Fire `rules` anywhere in `block` and its nested blocks until nothing matches; the number of firings.

    `where` limits the roots at which they may fire.
    """
    rules_at = _by_operator(rules)
    work = _Worklist(b for b in block.walk() if rules_at(b))
    fuel = Fuel(_FUEL_FLOOR + _FUEL_PER_BINDING * len(work))
    makers: dict[Binding, str] = {}
    fired = 0
    while work and not trace.stopped:
        binding = work.pop()
        if not binding.is_live or (where is not None and not where(binding)):
            continue
        for rule in rules_at(binding):
            if rule.shrinks is None and makers.get(binding) == rule.name:
                continue
            before = rule.shrinks.of(block.root) if trace.check_measures and rule.shrinks else None
            touched = fire(rule, binding, trace)
            if touched is None:
                continue
            fired += 1
            fuel.burn(rule.name)
            if before is not None and rule.shrinks is not None and rule.shrinks.of(block.root) >= before:
                raise InternalError(f"rule {rule.name} did not shrink its measure, the {rule.shrinks.name}")
            emitted, neighbours = touched
            makers.update(dict.fromkeys(emitted, rule.name))
            work.extend(b for b in (*emitted, *neighbours) if rules_at(b))
            break
    return fired


def _by_operator(rules: Sequence[Rule]) -> Callable[[Binding], Sequence[Rule]]:
    """Of `rules`, in their order, those that may fire at a binding."""
    known = [(rule, heads(rule.pattern)) for rule in rules]
    anywhere = [rule for rule, ops in known if ops is None]
    table = {
        key: [rule for rule, ops in known if ops is None or key in ops] for _, named in known for key in named or ()
    }
    return lambda b: table.get((b.domain, b.op), anywhere)


def fire(rule: Rule, binding: Binding, trace: Trace) -> tuple[list[Binding], list[Binding]] | None:
    """Try one rule at one binding: what it emitted and whose surroundings changed, or None when it does not apply."""
    counts = trace.of(rule.name)
    counts.tried += 1
    started = time.perf_counter()
    try:
        for captured in match_binding(rule.pattern, binding):
            counts.matched += 1
            touched = _build(rule, binding, captured, trace)
            if touched is not None:
                counts.applied += 1
                return touched
        return None
    finally:
        counts.seconds += time.perf_counter() - started


def _build(
    rule: Rule, binding: Binding, captured: Captured, trace: Trace
) -> tuple[list[Binding], list[Binding]] | None:
    arguments = call_arguments(rule.build, {**captured, "root": binding})
    with emitting(binding.block, sources=[binding], made_by=rule.name) as emitter:
        answer = answer_of(rule.build, **arguments)
    if answer is None or isinstance(answer, Decline):
        emitter.discard()
        if isinstance(answer, Decline):
            trace.missed(rule.name, str(binding), answer.reason)
        return None
    mapping = _as_mapping(answer, value_of(rule.pattern, captured), captured, rule)
    if not mapping:
        emitter.discard()
        return None
    trace.fired(rule.name, str(binding))
    neighbours = substitute(mapping, rule.name, fault_of(rule.build))
    emitter.discard()  # what was emitted and then not used
    return emitter.emitted, neighbours


def answer_of(build: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a rewriter answers; a decline where it writes a literal whose dtype nobody can tell."""
    try:
        return build(*arguments, **named)
    except UnknownDtype as error:
        return Decline(str(error))


def call_arguments(build: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is offered, what the function asks for by parameter name."""
    return {name: offered[name] for name in _parameters(build) if name in offered}


@lru_cache(maxsize=1024)
def _parameters(build: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(build).parameters)


def _as_mapping(answer: Any, root: Var, captured: Captured, rule: Rule) -> Mapping[Var, Var]:
    fault, binding = fault_of(rule.build), root.definition
    if isinstance(answer, Mapping):
        return replacements(answer, captured, rule.name, fault)
    if not isinstance(answer, tuple):
        return replacements({root: answer}, captured, rule.name, fault)
    olds = [] if binding is None else [v for v in binding.outputs[: len(answer)] if v is not None]
    if len(olds) != len(answer):
        raise fault(f"rule {rule.name} returned {len(answer)} values for {binding}")
    return replacements(dict(zip(olds, answer, strict=True)), captured, rule.name, fault)


def replacements(
    answer: Mapping[Any, Any], captured: Captured, rule: str, fault: type[OnnxgradError]
) -> dict[Var, Var]:
    """What a rewriter answered as values for values; left out are those that stay themselves and those nobody reads.

    A key is a value, the binding of one, or a pattern that stands for one. Raises `fault`, naming the rule.
    """
    found: dict[Var, Var] = {}
    for key, new in answer.items():
        old = key.out if isinstance(key, Binding) else key
        if isinstance(key, Pattern):
            try:
                old = value_of(key, captured)
            except KeyError:
                raise fault(f"rule {rule} replaces a pattern that is no part of what it matches") from None
        if not isinstance(old, Var):
            raise fault(f"rule {rule} replaces {type(old).__name__} {old!r}: only a value can be replaced")
        if not isinstance(new, Var):
            raise fault(
                f"rule {rule} replaces {old.name} by {type(new).__name__} {str(new)[:60]}: return a value of the graph "
                "(emitted with op, or captured)"
            )
        if not _in_scope(new, old.block):
            raise fault(f"rule {rule} replaces {old.name} by {new.name}, which is not in reach where that is read")
        if new is not old and old.use_count:
            found[old] = new
    return found


def _in_scope(v: Var, block: BindingBlock) -> bool:
    while v.block is not block:
        if block.owner is None:
            return False
        block = block.owner.block
    return True


def fault_of(build: Callable[..., Any]) -> type[OnnxgradError]:
    """The error for what a rewriter did wrong: a user's is the input, one of this package is our own fault."""
    ours = (getattr(build, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]
    return InternalError if ours else InputError


def substitute(mapping: Mapping[Var, Var], rule: str, fault: type[OnnxgradError] = InternalError) -> list[Binding]:
    """Replace values at once, drop what became unused, and return the bindings whose surroundings changed.

    Raises `fault` when a replacement has another type or would close a cycle.
    """
    neighbours: dict[Binding, None] = {}
    roots = [old.definition for old in mapping if old.definition is not None]
    for old, new in mapping.items():
        _check_type(old, new, rule, fault)
        neighbours.update(dict.fromkeys(old.users))
    if len(mapping) > 1 and closes_cycle(mapping):
        raise fault(f"rule {rule} builds on a value that it replaces, which would be a cycle, at {roots[0]}")
    for old, new in mapping.items():
        if new.type is None or _says_less(new, old):
            new.type = old.type
        old.block.replace(old, new)
    for root in roots:
        neighbours.update(dict.fromkeys(v.definition for v in root.reads() if v.definition is not None))
        for v in root.reads():
            neighbours.update(dict.fromkeys(v.users))
        root.block.remove_unused([root])
    return [b for b in neighbours if b.is_live]


def _check_type(old: Var, new: Var, rule: str, fault: type[OnnxgradError]) -> None:
    a, b = old.type, new.type
    if a is None or b is None:
        return
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        fits = a.dtype == b.dtype or 0 in (a.dtype, b.dtype)
        if a.shape is not None and b.shape is not None:
            fits = fits and len(a.shape) == len(b.shape)
            pairs = zip(a.shape, b.shape, strict=False)
            fits = fits and not any(isinstance(p, int) and isinstance(q, int) and p != q for p, q in pairs)
    else:
        fits = type(a) is type(b)
    if not fits:
        raise fault(f"rule {rule} replaces {old!r} by {new!r}, a value of another type")


def _says_less(new: Var, old: Var) -> bool:
    """The rewritten value is the same value, so what was known of its sizes stays known."""
    if old.shape is None:
        return False
    return new.shape is None or any(n is None and o is not None for n, o in zip(new.shape, old.shape, strict=True))


def closes_cycle(mapping: Mapping[Var, Var]) -> bool:
    """Whether a new value depends on one that is to be replaced: its own reader would then be its operand."""
    olds = {old.definition for old in mapping if old.definition is not None}
    news = {new.definition for new in mapping.values() if new.definition is not None} - olds
    # what a binding reads does not depend on it, so the search for it stops there and need not climb the whole model
    return any(
        depends_on(new, {old}, [v.definition for v in old.reads() if v.definition is not None])
        for old in olds
        for new in news
    )


class _Worklist:
    """First in, first out, each binding at most once at a time."""

    def __init__(self, items: Iterable[Binding]) -> None:
        self._queue = deque(items)
        self._waiting = set(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def pop(self) -> Binding:
        binding = self._queue.popleft()
        self._waiting.discard(binding)
        return binding

    def extend(self, items: Iterable[Binding]) -> None:
        for b in items:
            if b not in self._waiting:
                self._waiting.add(b)
                self._queue.append(b)
