"""Block rewriting: a pattern over several bindings, with a mapping from matched values to new
ones.

The roots of a `PatternContext` may share operands and need no common reader: a tree or DAG with
several roots. The names (`PatternContext`, `rewrite_call`, `rewrite_bindings`) are those of TVM
Relax, whose `relax.dpl` has the same two kinds of rewriting. Its limit on arities does not apply
here (`Each`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from onnxgrad.errors import InputError, InternalError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import ModelLike, check_room, load, to_kind_of
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.rewrite.attempt import Attempt, closes_cycle, replacements
from onnxgrad.rewrite.combine import independent
from onnxgrad.rewrite.match import at_member, earlier_lists, gather, match_binding, reader_of
from onnxgrad.rewrite.pattern import (
    Call,
    Capture,
    Captured,
    Each,
    Either,
    Pattern,
)
from onnxgrad.rewrite.slips import guarded, slip
from onnxgrad.rewrite.trace import Decline, Trace, decline
from onnxgrad.rewrite.worklist import Fuel, Measure, apply_rules, rewrite


@frozen
class Matched:
    """One match. `m[pattern]` is the value of a root or of a pattern inside one; `m[capture]` is a
    capture's value.

    Raises KeyError for a pattern that took no part in the match, such as an alternative not taken.
    """

    captured: Captured
    values: Mapping[Pattern, Any]

    def __getitem__(self, key: Pattern | str) -> Any:
        if isinstance(key, str):
            return self.captured[key]
        return self.values[key] if key in self.values else self.captured[key.key]


class PatternContext:
    """Several roots that match together, each a different value.

    roots: patterns, or `Each(P.Op(x, w), same=(x,))` for every binding of that form with one common
    x.

    Roots that differ only in the names of captures are interchangeable. A match that the rewriter
    leaves alone in one order is not offered again in another.
    """

    def __init__(self, *roots: Pattern) -> None:
        if not roots or not all(isinstance(root, Pattern) for root in roots):
            raise InputError(
                "PatternContext requires one or more roots, which are patterns written with P"
            )
        self.roots = roots
        self._only: list[tuple[Pattern, Pattern]] = []
        self._alike: list[int] = []  # for each root, the first that is interchangeable with it
        self._tests: list[Callable[[Matched], bool]] = []

    def only_used_by(self, producer: Pattern, consumer: Pattern) -> PatternContext:
        """Requires that only the binding of `consumer` reads the value of `producer`. Both are
        roots or patterns inside roots.
        """
        self._only.append((producer, consumer))
        self._alike = []
        return self

    def where(self, test: Callable[[Matched], bool]) -> PatternContext:
        """Keeps only matches that pass `test`."""
        self._tests.append(test)
        return self

    def matches(self, block: BindingBlock, first: Binding | None = None) -> Iterator[Matched]:
        """Yields every way to match all roots in one block, in the block's order. With `first`,
        only matches whose first root is that binding.
        """
        for captured, values in self._match(0, block, {}, {}, first):
            matched = Matched(captured, values)
            if self._holds(matched):
                yield matched

    def _match(
        self,
        index: int,
        block: BindingBlock,
        found: Captured,
        values: Mapping[Pattern, Any],
        first: Binding | None = None,
    ) -> Iterator[tuple[Captured, Mapping[Pattern, Any]]]:
        if index == len(self.roots):
            yield found, values
            return
        root = self.roots[index]
        if isinstance(root, Each):
            for extended, members in _families(root, block, found, _flat(values.values())):
                yield from self._match(index + 1, block, extended, {**values, root: members})
            return
        taken = {id(v) for v in _flat(values.values())}
        for b in _candidates(root, block, found) if first is None else [first]:
            for extended in match_binding(root, b, found):
                value = extended[root.key]
                if id(value) not in taken:
                    yield from self._match(index + 1, block, extended, {**values, root: value})

    def starts(self, block: BindingBlock) -> list[Binding | None]:
        """Returns the bindings that may be the first root, as `first` for `matches`. Returns [None]
        if the whole block must be searched.
        """
        first = self.roots[0]
        return [None] if isinstance(first, Each) else list(_candidates(first, block, {}))

    def unordered(self, matched: Matched) -> Hashable:
        """Returns the roots' values, regardless of the order of interchangeable roots."""
        if not self._alike:  # once: there are very many matches
            found = forms(self.roots, [pattern for pair in self._only for pattern in pair])
            self._alike = [found.index(form) for form in found]
        groups: dict[int, set[Any]] = {}
        for first, root in zip(self._alike, self.roots, strict=True):
            value = matched.values[root]
            groups.setdefault(first, set()).add(tuple(value) if isinstance(value, list) else value)
        return tuple(frozenset(values) for values in groups.values())

    def _holds(self, matched: Matched) -> bool:
        for producer, consumer in self._only:
            readers = {reader_of(v) for v in _flat([matched[producer]])}
            if None in readers or readers != {v.definition for v in _flat([matched[consumer]])}:
                return False
        return all(test(matched) for test in self._tests)


def _candidates(root: Pattern, block: BindingBlock, found: Captured) -> Iterable[Binding]:
    """Returns the bindings that may be `root`: that of its value or readers of its operand if known
    already, else all bindings of the block.
    """
    known = found.get(root.key)
    if isinstance(known, Var):
        return [b for b in (known.definition,) if b is not None and b.block is block]
    if isinstance(root, Either):
        return dict.fromkeys(
            b for choice in root.choices for b in _candidates(choice, block, found)
        )
    for operand in root.operands if isinstance(root, Call) else ():
        if isinstance(operand, Capture) and isinstance(found.get(operand.name), Var):
            return [b for b in found[operand.name].users if b.block is block]
    ops = root.heads
    return [b for b in block.bindings if ops is None or (b.domain, b.op) in ops]


def _families(
    each: Each, block: BindingBlock, found: Captured, taken_before: Sequence[Var]
) -> Iterator[tuple[Captured, list[Var]]]:
    """Yields the families of bindings that match `each.pattern` and have their `same` captures in
    common. No member depends on another or is already a root.
    """
    pattern = each.pattern
    common = {c.name for c in each.same}
    families: dict[tuple[Any, ...], list[tuple[Binding, Captured]]] = {}
    lists_before = earlier_lists(each, found)
    width = max(map(len, lists_before.values()), default=0)
    views = [at_member(i, width, found, lists_before) for i in range(width)] or [found]
    used: set[Binding] = set()
    for view in views:
        for b in _candidates(pattern, block, view):
            answer = None if b in used else next(match_binding(pattern, b, view), None)
            if answer is not None and answer[pattern.key] not in taken_before:
                same = (answer.get(c.name) for c in each.same)
                key = tuple(id(v) if isinstance(v, Var) else repr(v) for v in same)
                families.setdefault(key, []).append((b, answer))
                if lists_before:
                    used.add(b)
                    break
    for matching in families.values():
        taken = independent([b for b, _ in matching])  # together they would close a cycle
        members = [(b, answer) for b, answer in matching if b in taken]
        if not each.takes(len(members)) or (lists_before and len(members) != width):
            continue
        extended, lists = found, dict[Any, list[Any]]()
        for _, answer in members:
            extended, lists = gather(answer, extended, lists, common)
        yield {**extended, **lists}, [answer[pattern.key] for _, answer in members]


Rewriter = Callable[[Matched], Mapping[Any, Var] | Decline | None]


@known_keywords
def rewrite_bindings(
    context: PatternContext,
    rewriter: Rewriter,
    model: ModelLike,
    *,
    shrinks: Measure | None = None,
    trace: Trace | None = None,
) -> Any:
    """Rewrites every match of `context` until none is left. Returns the model in the type you
    passed in; a block or Program is changed in place.

    `rewriter(m)` emits with `op` and returns `{matched value (or its pattern): new value}`. It
    leaves the match alone by returning None, `{}`, the matched values themselves or `decline(...)`.
    New bindings may read values that are computed later in the block; the block is then sorted
    again. A match is refused if its replacement would close a cycle. Without `shrinks`, a measure
    that each rewrite makes smaller, no root of a match may be a binding that the rewriter emitted.
    Raises RuleFailed, naming the rewriter, if it returns anything else, raises an exception or does
    not terminate.

    >>> from onnxgrad import P, PatternContext, capture, op, rewrite_bindings
    >>> x = capture("x")
    >>> s, c = P.Sin(x), P.Cos(x)
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y, float[N] z) { y = Sin (x)  z = Cos (x) }''')
    >>> def by_sine(m):
    ...     # Cos(x) = Sin(x + pi / 2)
    ...     return {c: op.Sin(m[x] + float(np.pi / 2))}
    >>> found = rewrite_bindings(PatternContext(s, c), by_sine, model)
    >>> sorted(n.op_type for n in found.graph.node)
    ['Add', 'Sin', 'Sin']
    """
    trace = trace or Trace()
    done = _Rewriting(context, rewriter, trace, (context, rewriter) if shrinks is None else None)
    return _over(model, done.all_of)


@known_keywords
def rewrite_call(
    pattern: Pattern,
    rewriter: Callable[..., Any],
    model: ModelLike,
    *,
    shrinks: Measure | None = None,
    trace: Trace | None = None,
) -> Any:
    """Rewrites every binding that is the root of `pattern`. Returns the model in the type you
    passed in; a block or Program is changed in place.

    `rewriter` is called as a `@rewrite` rule is: with the captures it names, and `root`.

    >>> from onnxgrad import P, capture, op, rewrite_call
    >>> x = capture("x")
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N] x) => (float[N] y) { y = Softsign (x) }''')
    >>> found = rewrite_call(P.Softsign(x), lambda x: x / (op.Abs(x) + 1.0), model)
    >>> [n.op_type for n in found.graph.node]
    ['Abs', 'Add', 'Div']
    """
    rule = rewrite(pattern, shrinks=shrinks)(rewriter)
    return _over(model, lambda block: apply_rules(block, [rule], trace or Trace()))


def _over(model: ModelLike, transform: Callable[[BindingBlock], object]) -> Any:
    if isinstance(model, BindingBlock):
        transform(model)
        return model
    program = load(model)
    if program is not model:
        check_room(program, model)
    for block in (program.main, *program.functions.values()):
        transform(block)
    return to_kind_of(program, model)


@frozen
class _Rewriting:
    """Rewrites the matches of a context until none is left. `maker` marks the bindings that the
    rewriter emitted; None if it may match them.
    """

    context: PatternContext
    rewriter: Rewriter
    trace: Trace
    maker: object

    @property
    def name(self) -> str:
        return getattr(self.rewriter, "__name__", "rewriter")

    def all_of(self, root: BindingBlock) -> None:
        """Rewrites in a block and its nested blocks."""
        fuel = Fuel(sum(1 for _ in root.walk()))
        for block in blocks_in(root):
            refused: set[Hashable] = set()
            while self._sweep(block, fuel, refused):
                pass

    def _sweep(self, block: BindingBlock, fuel: Fuel, refused: set[Hashable]) -> bool:
        """Rewrites once through the block, continuing after each rewrite because models are long.
        Returns whether anything was rewritten.
        """
        fired = False
        for first in self.context.starts(block):
            if self.trace.stopped:
                return False
            if first is not None and not first.is_live:
                continue
            if self._first(block, refused, first):
                if not fuel.burn(self.name, self.rewriter, block.program, self.trace):
                    return False
                fired = True
        return fired

    def _first(self, block: BindingBlock, refused: set[Hashable], first: Binding | None) -> bool:
        """Rewrites the first match that the rewriter accepts. Returns False if there is none.
        Refused matches are not tried again.
        """
        name, author, program = self.name, self.rewriter, block.program
        failed = partial(slip, self.trace, name, first or block.name, program, author=author)
        for matched in guarded(self.context.matches(block, first), failed):
            key = self.context.unordered(matched)
            if key in refused:
                continue
            roots = _flat(matched.values.values())
            sources = [v.definition for v in roots if v.definition is not None]
            made = (self.trace.made.get(b) for b in sources)
            if self.maker is not None and self.maker in made:
                continue
            self.trace.of(name).matched += 1
            where = ", ".join(v.name for v in roots)
            attempt = Attempt(name, where, block, sources, author, maker=self.maker)
            mapping = partial(_mapping, matched=matched)
            if attempt(self.trace, partial(author, matched), mapping) is not None:
                return True
            refused.add(key)
        return False


def _mapping(answer: Any, matched: Matched) -> Mapping[Var, Var]:
    if not isinstance(answer, Mapping):
        raise InternalError(
            f"it must return a mapping of values to new ones, not {type(answer).__name__}"
        )
    found = replacements(answer, {**matched.captured, **matched.values})
    if closes_cycle(found):
        raise decline("the replacement reads a value that depends on the replaced value")
    return found


def _flat(values: Iterable[Any]) -> list[Var]:
    return [v for value in values for v in (value if isinstance(value, list) else [value])]


def forms(roots: Sequence[Pattern], told_apart: Collection[Pattern]) -> list[Hashable]:
    """Returns one form for each root. Roots of equal form are interchangeable. A root that contains
    one of `told_apart` is interchangeable with none.
    """
    around = [dict.fromkeys(root.walk()) for root in roots]
    times = Counter(key for found in around for key in {p.key for p in found})
    # a capture or a pattern that occurs in several roots is shared by them
    shared = {key for key, n in times.items() if n > 1}
    alike = [_form(root, shared, {}) for root in roots]
    return [
        (i, form) if any(p in told_apart for p in found) else form
        for i, (form, found) in enumerate(zip(alike, around, strict=True))
    ]


def _form(value: Any, shared: Collection[Hashable], own: dict[Hashable, int]) -> Hashable:
    """A pattern as nested tuples, in which its own captures are numbers in order of appearance."""
    if isinstance(value, Pattern):
        key: Hashable = value.key
        if key in shared and not isinstance(value, Capture):
            return key
        called = key if key in shared else own.setdefault(key, len(own))
        inside = (
            _form(getattr(value, f.name), shared, own)
            for f in fields(value)
            if f.name not in ("name", "label")
        )
        return (type(value).__name__, called, *inside)
    if isinstance(value, tuple):
        return tuple(_form(item, shared, own) for item in value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value if isinstance(value, Hashable) else repr(value)
