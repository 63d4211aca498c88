"""Matches a pattern against the block: a search over alternatives and operand orders that returns
the first match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, zip_longest
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import (
    COMMUTATIVE,
    CONSTANT,
    Both,
    Call,
    Capture,
    Captured,
    Each,
    Either,
    Literal,
    Not,
    Pattern,
    names_in,
)

# operands of a commutative operator that are tried in every order
_PERMUTED = 5


def may_match(pattern: Pattern, binding: Binding) -> bool:
    """Returns False if the operators alone show that `match_binding` finds nothing."""
    calls = pattern.calls
    return not calls or _one_fits(calls, binding)


def origins_of(binding: Binding) -> tuple[tuple[str, str] | None, ...]:
    """Returns what computes each operand, for `fits_origins`."""
    return tuple(None if v is None else _origin(v) for v in binding.inputs)


def _origin(v: Var) -> tuple[str, str] | None:
    if v.definition is not None:
        return v.definition.domain, v.definition.op
    return None if v.initializer is None else CONSTANT


def fits_origins(
    pattern: Pattern, operator: tuple[str, str], origins: Sequence[tuple[str, str] | None]
) -> bool:
    """Returns False if what computes the operands shows that no binding of `operator` matches."""
    domain, op = operator
    anywhere = op in COMMUTATIVE and not domain
    return not pattern.calls or any(
        op in call.ops
        and domain == call.domain
        and all(
            any(o in known for o in (origins if anywhere else origins[i : i + 1]))
            for i, known in call.known
        )
        for call in pattern.calls
    )


def match_binding(
    pattern: Pattern, binding: Binding, found: Captured | None = None
) -> Iterator[Captured]:
    """Yields every way in which `binding` computes the root of `pattern`, as captures that extend
    `found`. `only` at the root is ignored.
    """
    for var in binding.outputs:
        if var is not None:
            yield from _MATCHERS[type(pattern)](pattern, var, found or {}, True)


def _value(pattern: Pattern, var: Var | None, found: Captured) -> Iterator[Captured]:
    return iter(()) if var is None else _MATCHERS[type(pattern)](pattern, var, found, False)


def _capture(pattern: Capture, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    answer = dict(found)
    if _binds(pattern, var, answer):
        yield answer


def _either(pattern: Either, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    if found.get(pattern, var) is not var:
        return
    for choice in pattern.choices:
        # a value that another operand reads as well may match another alternative
        if root or not (isinstance(choice, Call) and choice.alone and var.sole_user() is None):
            for answer in _MATCHERS[type(choice)](choice, var, found, root):
                yield {**answer, pattern: var}


def _both(pattern: Both, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    if found.get(pattern, var) is not var:
        return
    for answer in _MATCHERS[type(pattern.first)](pattern.first, var, found, root):
        yield from ({**both, pattern: var} for both in _value(pattern.second, var, answer))


def _not(pattern: Not, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    if found.get(pattern, var) is var and next(_value(pattern.pattern, var, found), None) is None:
        yield {**found, pattern: var}


def _literal(pattern: Literal, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    if _is_value(var, pattern.value):
        yield found


def _call(pattern: Call, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    b = var.definition
    if (
        b is None
        or b.op not in pattern.ops
        or b.domain != pattern.domain
        or b.result(pattern.result) is not var
        or not (root or not pattern.alone or _alone(var))
        or not _operators_fit(pattern, b)
        or found.get(pattern, var) is not var
        or found.get(pattern.label, b) is not b
        or b.has_refs  # an attribute that the function's caller sets is unknown here
    ):
        return
    answer = {**found, pattern: var}
    if pattern.attrs and not _attributes(pattern, b, answer):
        return
    if pattern.label is not None:
        answer[pattern.label] = b
    for inputs in _orders(b, len(pattern.operands)):
        if pattern.is_flat:
            yield from _flat(pattern.operands, inputs, answer)
        else:
            yield from _operands(pattern.operands, inputs, answer)


def _each(pattern: Each, var: Var, found: Captured, root: bool) -> Iterator[Captured]:
    """Yields nothing: an Each stands for operands, not for one value."""
    return iter(())


_MATCHERS: dict[type[Pattern], Callable[[Any, Var, Captured, bool], Iterator[Captured]]] = {
    Capture: _capture,
    Either: _either,
    Both: _both,
    Not: _not,
    Literal: _literal,
    Call: _call,
    Each: _each,
}


def _alone(var: Var) -> bool:
    """Whether one binding reads the value, in the value's own block. A nested block may read it
    many times.
    """
    user = reader_of(var)
    return user is not None and user.block is var.block


def reader_of(var: Var) -> Binding | None:
    """Returns the only binding that reads `var`, in any number of operands. None if there are other
    readers or a block returns `var`.
    """
    return next(iter(var.users)) if len(var.users) == 1 and not var.returned else None


def _is_value(var: Var, value: Any) -> bool:
    """Whether `var` is a constant of this value. A number matches a scalar or a vector of one
    element.
    """
    shapes: tuple[Any, ...] = ((), (1,)) if value.ndim == 0 else (value.shape,)
    array: Any = var.const if var.shape in shapes else None
    if array is None:
        return False
    if value.dtype.kind in "US" or array.dtype.kind in "OUS":
        return array.dtype.kind in "OUS" and bool((array.astype(str) == value).all())
    if (value.dtype.kind == "b") != (array.dtype.kind == "b"):
        return False
    with np.errstate(all="ignore"):
        own = value.astype(array.dtype)  # 0.1 is another number in each floating dtype
    kept = array.dtype.kind not in "iu" or np.array_equal(own, value)
    return bool(
        kept and np.array_equal(array.reshape(own.shape).astype(np.float64), own.astype(np.float64))
    )


def _binds(pattern: Capture, value: Any, answer: dict[Any, Any]) -> bool:
    """Whether a capture matches the value of an operand or attribute. If it does, the value is
    added to `answer`.
    """
    name = pattern.name
    if name in answer:
        known = answer[name]
        return known is value or (not isinstance(value, Var) and bool(known == value))
    if pattern.constant and not value.is_constant:
        return False
    if pattern.test is not None and not pattern.test(value):
        return False
    answer[name] = value
    return True


def _attributes(pattern: Call, b: Binding, answer: dict[Any, Any]) -> bool:
    for name, wanted in pattern.attrs:
        value = b.attr(name)
        if not (_binds(wanted, value, answer) if isinstance(wanted, Capture) else value == wanted):
            return False
    return True


def _operators_fit(pattern: Call, b: Binding) -> bool:
    """Whether operands that must be constants or results of an operator are, and their own operands
    too. It is the cheapest test, and most bindings fail it.
    """
    anywhere = b.op in COMMUTATIVE
    for i in pattern.constants:
        for v in b.inputs if anywhere else b.inputs[i : i + 1]:
            if v is not None and _origin(v) == CONSTANT:
                break
        else:
            return False
    for i, calls in pattern.computed:
        for v in b.inputs if anywhere else b.inputs[i : i + 1]:
            if v is not None and v.definition is not None and _one_fits(calls, v.definition):
                break
        else:
            return False
    return True


def _one_fits(calls: Sequence[Call], b: Binding) -> bool:
    return any(b.op in call.ops and _operators_fit(call, b) for call in calls)


def _orders(b: Binding, width: int) -> Iterable[Sequence[Var | None]]:
    """Returns the operands in their own order and, if a commutative operator has few of them, in
    every other order.
    """
    if (
        b.op not in COMMUTATIVE
        or b.domain != ""
        or len(b.inputs) != width
        or not 2 <= width <= _PERMUTED
    ):
        return (b.inputs,)
    return dict.fromkeys(permutations(b.inputs))


def _flat(
    patterns: Sequence[Pattern | None], inputs: Sequence[Var | None], found: Captured
) -> Iterator[Captured]:
    """Matches operands whose patterns are all captures or None."""
    answer = dict(found)
    for pattern, var in zip_longest(patterns, inputs):  # no `all`: most operators come here
        if not _taken(pattern, var, answer):
            return
    yield answer


def _operands(
    patterns: Sequence[Pattern | None], inputs: Sequence[Var | None], found: Captured
) -> Iterator[Captured]:
    if patterns and isinstance(patterns[-1], Each):
        fixed = len(patterns) - 1
        if not _alone_throughout(
            [*patterns[:fixed], *[patterns[-1].pattern] * (len(inputs) - fixed)], inputs
        ):
            return
        for answer in _fixed(patterns[:fixed], inputs[:fixed], found):
            gathered = _members(patterns[-1], inputs[fixed:], answer)
            if gathered is not None:
                yield gathered
        return
    # operands beyond the pattern must be omitted in the binding, and the other way round
    if len(patterns) != len(inputs):
        width = max(len(patterns), len(inputs))
        patterns = [*patterns, *[None] * (width - len(patterns))]
        inputs = [*inputs, *[None] * (width - len(inputs))]
    if _alone_throughout(patterns, inputs):
        yield from _fixed(patterns, inputs, found)


def _alone_throughout(patterns: Sequence[Pattern | None], inputs: Sequence[Var | None]) -> bool:
    """Whether the pattern says `only` at every operand that reads a value, if it says so at one of
    them.
    """
    if len(set(inputs)) == len(inputs):
        return True
    times = Counter(inputs)
    slots = [(p, v) for p, v in zip(patterns, inputs) if v is not None and times[v] > 1]
    marked = {v for p, v in slots if isinstance(p, Call) and p.alone}
    return all(isinstance(p, Call) and p.alone for p, v in slots if v in marked)


def _fixed(
    patterns: Sequence[Pattern | None], inputs: Sequence[Var | None], found: Captured
) -> Iterator[Captured]:
    if len(inputs) < len(patterns):
        return
    own = dict(found)
    for i, (pattern, var) in enumerate(zip(patterns, inputs, strict=False)):
        if pattern is not None and var is not None and not isinstance(pattern, Capture):
            for answer in _value(pattern, var, own):
                yield from _fixed(patterns[i + 1 :], inputs[i + 1 :], answer)
            return
        if not _taken(pattern, var, own):
            return
    yield own


def _taken(pattern: Pattern | None, var: Var | None, answer: dict[Any, Any]) -> bool:
    """Whether an operand fits a capture or None; a captured value is added to `answer`. There is at
    most one way, so nothing to backtrack.
    """
    if not isinstance(pattern, Capture):
        return pattern is None and var is None
    if var is not None:
        return _binds(pattern, var, answer)
    fits = pattern.absent and answer.get(pattern.name) is None
    if fits:
        answer[pattern.name] = None
    return fits


def earlier_lists(each: Each, found: Captured) -> dict[Any, list[Any]]:
    """Returns the lists that another Each gathered for the captures and patterns of this one. Here
    they stand for the same values, member by member.
    """
    keys = {*names_in(each.pattern), *(p.key for p in each.pattern.walk())}
    return {key: found[key] for key in keys if isinstance(found.get(key), list)}


def at_member(i: int, members: int, found: Captured, lists: dict[Any, list[Any]]) -> Captured:
    """Returns what was found, with the values of member `i` for `lists`. A shorter list belongs to
    an alternative that not all members took, and is left out.
    """
    own = {key: known[i] for key, known in lists.items() if len(known) == members}
    return {**{key: value for key, value in found.items() if key not in lists}, **own}


def _members(each: Each, inputs: Sequence[Var | None], found: Captured) -> Captured | None:
    if not each.takes(len(inputs)):
        return None
    common = {c.name for c in each.same}
    # without operands the captures are empty lists
    lists: dict[Any, list[Any]] = (
        {} if inputs else {n: [] for n in names_in(each.pattern) if n not in {*common, *found}}
    )
    shared = earlier_lists(each, found)
    if any(
        len(known) != len(inputs)
        for key, known in shared.items()
        if isinstance(key, str) or key is each.pattern
    ):
        return None
    for i, var in enumerate(inputs):
        own = at_member(i, len(inputs), found, shared) if shared else found
        answer = next(_value(each.pattern, var, own), None)
        if answer is None:
            return None
        found, lists = gather(answer, found, lists, common)
    return {**found, **lists}


def gather(
    answer: Captured, found: Captured, lists: dict[Any, list[Any]], common: set[str]
) -> tuple[Captured, dict[Any, list[Any]]]:
    """Adds one member's captures: those in `common` to the captures of all members, the others to
    their lists.
    """
    for name, value in answer.items():
        if name not in found:
            if name in common:
                found = {**found, name: value}
            else:
                lists.setdefault(name, []).append(value)
    return found, lists
