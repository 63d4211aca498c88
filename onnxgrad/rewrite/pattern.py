"""The pattern language. `P.Transpose(P.Transpose(x, perm=p), perm=q)` describes values; captures
are its variables.

A capture stands for a value where an operand is expected and for an attribute's value after
`name=`. The same capture twice must stand for the same thing. Commutative operators match in both
orders. A number or an array where an operand is expected stands for a constant of that value. `p |
q`, `p & q` and `~p` are alternatives, both and not; `x.maybe` is an operand that may be left out,
`Each(p)` any number of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal", "Sum", "Mean"})


@dataclass(frozen=True, eq=False)
class Pattern:
    """Describes one value. `p | q`: the first that matches; `p & q`: both; `~p`: whatever `p`
    does not match.
    """

    def __or__(self, other: Pattern) -> Either:
        return Either((self, other))

    def __and__(self, other: Pattern) -> Both:
        return Both(self, other)

    def __invert__(self) -> Not:
        return Not(self)


@dataclass(frozen=True, eq=False)
class Capture(Pattern):
    """Any value (or attribute value), remembered under `name`; `test` may refuse it.

    absent: as an operand it may also be left out, and then stands for None.
    """

    name: str
    test: Callable[[Any], bool] | None = None
    absent: bool = False

    def where(self, test: Callable[[Any], bool]) -> Capture:
        """The same capture, only for what passes `test` (a rank, a dtype, a shape, being
        constant, ...).
        """
        return replace(self, test=test)

    @property
    def maybe(self) -> Capture:
        """The same capture for an operand that may be left out: None then, whatever `where`
        says.
        """
        return replace(self, absent=True)

    @property
    def const(self) -> Capture:
        """Only a value that the file fixes."""
        return self.where(lambda v: v.is_constant)

    @property
    def shared(self) -> Capture:
        """Only a value that several bindings read."""
        return self.where(lambda v: v.is_shared)


@dataclass(frozen=True, eq=False)
class Literal(Pattern):
    """A constant of this value in any dtype: a number may be a scalar or a vector of one, an
    array has its shape.
    """

    value: Array


@dataclass(frozen=True, eq=False)
class Call(Pattern):
    """The result of an operator. `alone`: read by nothing but the pattern. `label` captures the
    binding itself.
    """

    ops: frozenset[str]
    domain: str
    operands: tuple[Pattern | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    alone: bool = False
    label: str | None = None
    result: int = 0

    @cached_property
    def computed(self) -> tuple[tuple[int, tuple[Call, ...]], ...]:
        """The operands that must be results of an operator, by index, and the calls of which each
        must be one.
        """
        return tuple((i, calls) for i, p in enumerate(self.operands) if (calls := _calls(p)))

    @cached_property
    def is_flat(self) -> bool:
        """Whether its operands are captured or left out: there is one answer in each order."""
        return all(p is None or type(p) is Capture for p in self.operands)

    @property
    def only(self) -> Call:
        """The same call, used only by the binding that the pattern has above it, and in the same
        block.

        A binding that reads it in several operands matches where the pattern says `only` at each of
        them.
        """
        return replace(self, alone=True)

    def named(self, label: str) -> Call:
        """The same call, its binding remembered under `label`."""
        return replace(self, label=label)

    def output(self, index: int) -> Call:
        """The call seen through its output `index`."""
        return replace(self, result=index)


@dataclass(frozen=True, eq=False)
class Each(Pattern):
    """Every one of the remaining operands (or, in a PatternContext, every such binding): captures
    gather lists.

    Captures in `same` stand for one value that all have in common. A capture in two `Each` stands
    for one list. at_least, at_most: how many there may be; None: any number.
    """

    pattern: Pattern
    same: tuple[Capture, ...] = ()
    at_least: int = 0
    at_most: int | None = None

    def takes(self, members: int) -> bool:
        """Whether there may be so many."""
        return self.at_least <= members and (self.at_most is None or members <= self.at_most)


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """The first alternative that matches."""

    choices: tuple[Pattern, ...]

    def __or__(self, other: Pattern) -> Either:
        return Either((*self.choices, other))


@dataclass(frozen=True, eq=False)
class Both(Pattern):
    """What both patterns match, with the captures of both."""

    first: Pattern
    second: Pattern


@dataclass(frozen=True, eq=False)
class Not(Pattern):
    """A value that the pattern does not match, given the captures found before; it captures
    nothing.
    """

    pattern: Pattern


def _calls(pattern: Pattern | None) -> tuple[Call, ...]:
    """The calls of which a value must be one to match; none where it may be something else."""
    if isinstance(pattern, Call):
        return (pattern,)
    if isinstance(pattern, Both):
        return _calls(pattern.first) or _calls(pattern.second)
    if isinstance(pattern, Either):
        choices = [_calls(choice) for choice in pattern.choices]
        return tuple(call for calls in choices for call in calls) if all(choices) else ()
    return ()


@known_keywords
def capture(names: str) -> Any:
    """Captures for the names in a space-separated string: one, or a tuple of them.

    >>> x, w = onnxgrad.capture("x w")
    >>> x.name, w.name
    ('x', 'w')
    """
    made = tuple(Capture(n) for n in names.split())
    return made[0] if len(made) == 1 else made


class _Operators:
    """`P.Op(operand patterns, attribute=value or capture)`; `P.any_of("Relu", "Tanh")(x)`;
    `P.domain("d").Op(...)`.

    Operand patterns are captures, other patterns, numbers, or None for one that is left out;
    attributes may be captured too. Where several values may stand, an `Each`.

    >>> from onnxgrad import P, capture
    >>> x, w, b = capture("x w b")
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    ... g (float[N,4] x, float[4,5] w, float[5] b) => (float[N,5] y) {
    ...   p = MatMul (x, w)  y = Add (p, b) }''')
    >>> to_gemm = lambda x, w, b: onnxgrad.op.Gemm(x, w, b)
    >>> found = onnxgrad.rewrite_call(P.Add(P.MatMul(x, w), b), to_gemm, model)
    >>> [n.op_type for n in found.graph.node]
    ['Gemm']
    """

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def domain(self, name: str) -> _Operators:
        """Patterns over another domain's operators."""
        return _Operators(name)

    def any_of(self, *ops: str) -> Callable[..., Call]:
        """A call of any of several operators."""
        return lambda *operands, **attrs: self._call(frozenset(ops), operands, attrs)

    def __getattr__(self, op: str) -> Callable[..., Call]:
        return lambda *operands, **attrs: self._call(frozenset({op}), operands, attrs)

    def _call(
        self, ops: frozenset[str], operands: Sequence[Pattern | None], attrs: dict[str, Any]
    ) -> Call:
        if any(isinstance(o, Each) for o in operands[:-1]):
            raise InputError("Each(...) stands for all remaining operands, so it comes last")
        if self._domain == "":
            for name in attrs:
                _check_attribute(ops, name)
        written = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attrs.items())
        return Call(ops, self._domain, tuple(_operand(o) for o in operands), written)


def _check_attribute(ops: frozenset[str], name: str) -> None:
    """Raises InputError when one of these operators of ONNX has no such attribute in any
    version.
    """
    for op in ops:
        if onnx.defs.has(op) and name not in onnx.defs.get_schema(op).attributes:
            known = _in_any_version()[op]
            if name not in known:
                raise InputError(
                    f"{op} has no attribute '{name}': it has {', '.join(sorted(known)) or 'none'}"
                )


@lru_cache(maxsize=1)
def _in_any_version() -> dict[str, frozenset[str]]:
    """The attributes of each operator of the default domain. Asked for old ones only: it takes a
    tenth of a second.
    """
    found: dict[str, frozenset[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name] = found.get(schema.name, frozenset()) | schema.attributes.keys()
    return found


def _operand(given: Any) -> Pattern | None:
    if given is None or isinstance(given, Pattern):
        return given
    value = np.asarray(given)
    if value.dtype.kind not in "biufUS":
        raise InputError(
            "a pattern's operand is a pattern, None, a number or an array, not "
            f"{type(given).__name__}"
        )
    return Literal(value)


P: Any = _Operators()


# captures by name, and the patterns of operators and alternatives by themselves: what each stands
# for
Captured = Mapping[Any, Any]


def value_of(pattern: Pattern, captured: Captured) -> Any:
    """What a pattern stands for in a match. Raises KeyError for one that is no part of it."""
    return captured[pattern.name if isinstance(pattern, Capture) else pattern]


def heads(pattern: Pattern) -> frozenset[tuple[str, str]] | None:
    """The operators, by domain and name, that may compute what `pattern` describes; None: any."""
    if isinstance(pattern, Call):
        return frozenset((pattern.domain, op) for op in pattern.ops)
    if isinstance(pattern, Both):
        first, second = heads(pattern.first), heads(pattern.second)
        return second if first is None else first if second is None else first & second
    if isinstance(pattern, Either):
        choices = [heads(choice) for choice in pattern.choices]
        known = [choice for choice in choices if choice is not None]
        return frozenset().union(*known) if len(known) == len(choices) else None
    return None


def names_in(pattern: Pattern | None) -> Iterator[str]:
    """The names of a pattern's captures."""
    if isinstance(pattern, Capture):
        yield pattern.name
    elif isinstance(pattern, Each):
        yield from names_in(pattern.pattern)
    elif isinstance(pattern, Either):
        for choice in pattern.choices:
            yield from names_in(choice)
    elif isinstance(pattern, Both):
        yield from (*names_in(pattern.first), *names_in(pattern.second))
    elif isinstance(pattern, Call):
        yield from ([] if pattern.label is None else [pattern.label])
        for inner in (*pattern.operands, *(wanted for _, wanted in pattern.attrs)):
            yield from names_in(inner if isinstance(inner, Pattern) else None)


def gather(
    answer: Captured, found: Captured, lists: dict[Any, list[Any]], common: set[str]
) -> tuple[Captured, dict[Any, list[Any]]]:
    """Add one member's captures: those in `common` to what is found for all, the others to their
    lists.
    """
    for name, value in answer.items():
        if name not in found:
            if name in common:
                found = {**found, name: value}
            else:
                lists.setdefault(name, []).append(value)
    return found, lists


def forms(roots: Sequence[Pattern], told_apart: Collection[Pattern]) -> list[Hashable]:
    """One form for each root; equal ones are interchangeable. A root around one of `told_apart`
    is like no other.
    """
    parts = [list(_parts(root)) for root in roots]
    names = Counter(name for found in parts for name in {_name(p) for p in found})
    # a capture that several roots have is the same for all, and so is a pattern that stands in
    # several
    shared = {name for name, times in names.items() if times > 1}
    alike = [_form(root, shared, {}) for root in roots]
    return [
        (i, form) if any(p in told_apart for p in found) else form
        for i, (form, found) in enumerate(zip(alike, parts, strict=True))
    ]


def _name(pattern: Pattern) -> Hashable:
    return pattern.name if isinstance(pattern, Capture) else id(pattern)


def _parts(value: Any) -> Iterator[Pattern]:
    """The patterns inside a pattern, itself included."""
    if isinstance(value, Pattern):
        yield value
        for f in fields(value):
            yield from _parts(getattr(value, f.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _parts(item)


def _form(value: Any, shared: Collection[Hashable], own: dict[Hashable, int]) -> Hashable:
    """A pattern as nested tuples, in which its own captures are numbers in order of appearance."""
    if isinstance(value, Pattern):
        name = _name(value)
        if name in shared and not isinstance(value, Capture):
            return name
        called = name if name in shared else own.setdefault(name, len(own))
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
