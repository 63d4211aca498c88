"""Applies rules with one root on a worklist: match, then guards, then build, and one replacement
last.

A rule is one-shot or shrinks a declared measure, so rewriting ends. The fuel is a backstop, and
names the rule that used it up.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from onnxgrad.errors import InputError, InternalError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.operator_index import Operator, bindings_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.rewrite.attempt import (
    Attempt,
    Touched,
    call_arguments,
    check_parameters,
    replacements,
)
from onnxgrad.rewrite.match import fits_origins, match_binding, may_match, origins_of
from onnxgrad.rewrite.pattern import Capture, Captured, Pattern
from onnxgrad.rewrite.slips import guarded, slip
from onnxgrad.rewrite.trace import Trace

# rewrites allowed per binding of the block, plus a floor for tiny ones
_FUEL_PER_BINDING = 20
_FUEL_FLOOR = 1000
# operands of a binding whose fitting rules are remembered
_WIDEST = 6


@frozen(eq=False)
class Measure:
    """A well-founded measure that each rewrite of a rule shrinks: a natural number computed from
    the block.
    """

    name: str
    of: Callable[[BindingBlock], int]


def count(*ops: str) -> Measure:
    """Returns the measure that counts bindings of these operators, or all bindings if none is
    named.
    """
    wanted = frozenset(ops)
    return Measure(
        f"number of {'/'.join(ops) or 'bindings'}",
        lambda block: sum(1 for b in block.walk() if not wanted or b.op in wanted),
    )


@frozen(eq=False)
class Law:
    """A rewrite rule: where it applies (`pattern`), what to build, and the measure that ends it
    (`shrinks`; None for one-shot rules).
    """

    name: str
    pattern: Pattern
    build: Callable[..., Any]
    shrinks: Measure | None

    @property
    def maker(self) -> object:
        """Marks the bindings that a one-shot law emitted; None for others."""
        return (self.pattern, self.build) if self.shrinks is None else None

    @property
    def law(self) -> str:
        """The rule's equation: the first line of its docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]


@frozen(eq=False)
class Rule(Law):
    """A rewrite rule with one root. `needs` names an operator and the default opset that introduced
    it. Below that opset the rule is matched only to explain why it does not apply.
    """

    needs: tuple[str, int] | None = None


@known_keywords
def rewrite(
    pattern: Pattern | Callable[..., Pattern],
    *,
    shrinks: Measure | None = None,
    needs: tuple[str, int] | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Makes a rewrite rule of a function. The function receives the captures by name, and the
    matched binding if it has a parameter `root`. `pattern` may be a function that returns the
    pattern: its parameters are captures.

    The function returns the replacement of the matched value, a tuple that replaces all outputs of
    its binding, or a mapping of values to replacements. It leaves the match alone by returning
    None, the matched value itself, an empty mapping, or `decline("why")`. Any other answer and any
    exception end the run with RuleFailed. Without `shrinks` the rule is one-shot: it never rewrites
    a binding that it emitted itself, in any round. `needs`, as in ("Gelu", 20), skips the search in
    models of an older opset, where the function would decline.

    >>> from onnxgrad import P, capture, op, rewrite
    >>> x = capture("x")
    >>> @rewrite(P.Abs(P.Neg(x)))
    ... def abs_of_neg(x):
    ...     '''Abs(Neg(x)) = Abs(x), of any shape and dtype'''
    ...     return op.Abs(x)
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { n = Neg (x)  y = Abs (n) }''')
    >>> found = onnxgrad.optimize(model, passes=[abs_of_neg, "remove-unused"])
    >>> [n.op_type for n in found.graph.node]
    ['Abs']
    """
    if inspect.isfunction(pattern):
        pattern = pattern(*map(Capture, inspect.signature(pattern).parameters))
    if not isinstance(pattern, Pattern):
        raise InputError(
            f"a rule's pattern is written with P, as in P.Relu(x), not as {type(pattern).__name__}"
        )

    def made(build: Callable[..., Any]) -> Rule:
        check_parameters(build, pattern, "root")
        return Rule(build.__name__, pattern, build, shrinks, needs)

    return made


def apply_rules(
    block: BindingBlock,
    rules: Sequence[Rule],
    trace: Trace,
    *,
    where: Callable[[Binding], bool] | None = None,
) -> int:
    """Applies `rules` anywhere in `block` and its nested blocks until nothing matches. Returns the
    number of rewrites.

    `where` limits the roots at which the rules are tried.
    """
    rules_at, ops = _by_operator(tuple(rules))
    work = _Worklist(block.walk() if ops is None else bindings_of(block, ops))
    fuel, fitting = Fuel(len(work)), _Fitting()
    fired = 0
    while work and not trace.stopped:
        binding = work.pop()
        if not binding.is_live or (where is not None and not where(binding)):
            continue
        for rule, may_fit in fitting(binding, rules_at(binding)):
            if rule.shrinks is None and trace.made.get(binding) == rule.maker:
                continue
            if not may_fit:
                trace.of(rule.name).tried += 1
                continue
            before = rule.shrinks.of(block.root) if trace.check_measures and rule.shrinks else None
            touched = fire(rule, binding, trace)
            if touched is None:
                continue
            fired += 1
            if not fuel.burn(rule.name, rule.build, block.program, trace):
                return fired
            if (
                before is not None
                and rule.shrinks is not None
                and rule.shrinks.of(block.root) >= before
            ):
                raise InternalError(
                    f"rule {rule.name} did not shrink its measure, the {rule.shrinks.name}"
                )
            work.extend(b for b in (*touched.emitted, *touched.neighbours) if rules_at(b))
            break
    return fired


@lru_cache(maxsize=256)
def _by_operator(
    rules: tuple[Rule, ...],
) -> tuple[Callable[[Binding], Sequence[Rule]], Collection[Operator] | None]:
    """Returns a function from a binding to the rules that may apply there, in order, and the
    operators at which any rule may apply (None: all).
    """
    known = [(rule, rule.pattern.heads) for rule in rules]
    anywhere = [rule for rule, ops in known if ops is None]
    table = {
        key: [rule for rule, ops in known if ops is None or key in ops]
        for _, named in known
        for key in named or ()
    }
    return lambda b: table.get((b.domain, b.op), anywhere), None if anywhere else table


class _Fitting:
    """Remembers which rules fit an operator and the operators of its operands: most rules fit few
    of the bindings that have their root's operator.
    """

    def __init__(self) -> None:
        self._known: dict[Any, list[tuple[Rule, bool]]] = {}

    def __call__(self, b: Binding, rules: Sequence[Rule]) -> Sequence[tuple[Rule, bool]]:
        """Returns each rule, and False for one that does not match at `b`."""
        if len(b.inputs) > _WIDEST:
            return [(rule, True) for rule in rules]
        operator, origins = (b.domain, b.op), origins_of(b)
        found = self._known.get((operator, origins))
        if found is None:
            found = [(rule, fits_origins(rule.pattern, operator, origins)) for rule in rules]
            self._known[operator, origins] = found
        return found


def fire(rule: Rule, binding: Binding, trace: Trace) -> Touched | None:
    """Tries one rule at one binding, in every way that it matches, until one rewrites it."""
    counts = trace.of(rule.name)
    counts.tried += 1
    if not trace.explain and lacks(rule, binding):
        return None
    if not may_match(rule.pattern, binding):
        return None
    started = time.perf_counter()
    if trace.derivations is not None:
        trace.derivations.forget()
    program = binding.block.program
    failed = partial(slip, trace, rule.name, binding, program, author=rule.build)
    try:
        for captured in guarded(match_binding(rule.pattern, binding), failed):
            counts.matched += 1
            attempt = Attempt(
                rule.name, binding, binding.block, [binding], rule.build, maker=rule.maker
            )
            arguments = call_arguments(rule.build, {**captured, "root": binding})
            root = captured[rule.pattern.key]
            mapping = partial(_as_mapping, root=root, captured=captured)
            touched = attempt(trace, partial(rule.build, **arguments), mapping)
            if touched is not None:
                counts.law = counts.law or rule.law
                return touched
        return None
    finally:
        counts.seconds += time.perf_counter() - started


def lacks(rule: Rule, binding: Binding) -> bool:
    """Whether the default opset where `binding` stands is older than what the rule needs."""
    return rule.needs is not None and binding.block.opsets.get("", 0) < rule.needs[1]


def _as_mapping(answer: Any, root: Var, captured: Captured) -> Mapping[Var, Var]:
    if isinstance(answer, Mapping):
        return replacements(answer, captured)
    if not isinstance(answer, tuple):
        return replacements({root: answer}, captured)
    binding = root.definition
    olds = [] if binding is None else [v for v in binding.outputs[: len(answer)] if v is not None]
    if len(olds) != len(answer):
        raise InternalError(f"it returned {len(answer)} values for {binding}")
    return replacements(dict(zip(olds, answer, strict=True)), captured)


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


class Fuel:
    """The backstop against endless rewriting: a limit on the number of rewrites."""

    def __init__(self, bindings: int) -> None:
        self.amount = _FUEL_FLOOR + _FUEL_PER_BINDING * bindings
        self.left = self.amount

    def burn(self, rule: str, author: Callable[..., Any], program: Program, trace: Trace) -> bool:
        """Counts one rewrite of `rule`, whose function is `author`. Returns False if the fuel is
        spent and the rule is one of this package. Raises RuleFailed if it is a caller's.
        """
        self.left -= 1
        if self.left < 0:
            reason = (
                f"it was applied until its fuel of {self.amount} was spent: it does not terminate "
                "on this graph"
            )
            slip(trace, rule, program.main.name, program, InternalError(reason), author)
        return self.left >= 0
