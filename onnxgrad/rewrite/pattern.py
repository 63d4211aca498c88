"""The pattern language. `P.Transpose(P.Transpose(x, perm=p), perm=q)` describes values; captures
are its variables.

As an operand, a capture matches a value; after `name=`, it matches an attribute's value. A capture
or a pattern object that is used twice must match the same value. Commutative operators match in
both orders. A number or an array matches a constant of that value. `x * y` is `P.Mul(x, y)`.
`p | q` is an alternative, `p & q` requires both, and `~p` excludes. `x.maybe` is an optional
operand, `Each(p)` any number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.domains import SYMMETRIC
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords

COMMUTATIVE = frozenset((*SYMMETRIC, "Max", "Mean", "Min", "Sum"))

# a match: values by `Pattern.key`, and bindings by label
Captured = Mapping[Any, Any]

# what computes a value, by domain and name; initializers count as Constant
Origins = frozenset[tuple[str, str]]
CONSTANT = ("", "Constant")


@frozen(eq=False)
class Pattern:
    """Describes one value. `p | q`: the first that matches; `p & q`: both; `~p`: whatever `p`
    does not match. Arithmetic on patterns is the pattern of its operators: `x * 2.0` is
    `P.Mul(x, 2.0)`.
    """

    __array_ufunc__: ClassVar[None] = None  # an array on the left leaves the operator to us

    def __add__(self, other: Any) -> Call:
        return _call("Add", self, other)

    def __radd__(self, other: Any) -> Call:
        return _call("Add", other, self)

    def __sub__(self, other: Any) -> Call:
        return _call("Sub", self, other)

    def __rsub__(self, other: Any) -> Call:
        return _call("Sub", other, self)

    def __mul__(self, other: Any) -> Call:
        return _call("Mul", self, other)

    def __rmul__(self, other: Any) -> Call:
        return _call("Mul", other, self)

    def __truediv__(self, other: Any) -> Call:
        return _call("Div", self, other)

    def __rtruediv__(self, other: Any) -> Call:
        return _call("Div", other, self)

    def __pow__(self, other: Any) -> Call:
        return _call("Pow", self, other)

    def __matmul__(self, other: Any) -> Call:
        return _call("MatMul", self, other)

    def __neg__(self) -> Call:
        return _call("Neg", self)

    def __or__(self, other: Pattern) -> Either:
        return Either((self, other))

    def __and__(self, other: Pattern) -> Both:
        return Both(self, other)

    def __invert__(self) -> Not:
        return Not(self)

    @property
    def key(self) -> Any:
        """The key of the pattern's value in a match: the name of a capture, else itself."""
        return self

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls of which a matching value must be one; empty if it may be something else."""
        return ()

    @property
    def heads(self) -> Origins | None:
        """The operators, by domain and name, that may compute a matching value; None: any."""
        return None

    @property
    def origins(self) -> Origins | None:
        """The operators that may compute a matching operand; None: any."""
        return None

    @cached_property
    def inside(self) -> tuple[Pattern, ...]:
        """The patterns directly inside this one."""
        return tuple(_patterns(getattr(self, f.name) for f in fields(self)))

    def walk(self) -> Iterator[Pattern]:
        """This pattern and all inside it."""
        yield self
        for inner in self.inside:
            yield from inner.walk()


def _patterns(values: Iterable[Any]) -> Iterator[Pattern]:
    for value in values:
        if isinstance(value, Pattern):
            yield value
        elif isinstance(value, tuple):
            yield from _patterns(value)


@frozen(eq=False)
class Capture(Pattern):
    """Any value (or attribute value), remembered under `name`; `test` may refuse it.

    constant: only a constant matches. absent: the operand may be omitted; the capture is then None.
    """

    name: str
    test: Callable[[Any], bool] | None = None
    absent: bool = False
    constant: bool = False

    @property
    def key(self) -> str:
        return self.name

    @property
    def origins(self) -> Origins | None:
        return frozenset({CONSTANT}) if self.constant and not self.absent else None

    def where(self, test: Callable[[Any], bool]) -> Capture:
        """The same capture, restricted to values that pass `test` (on rank, dtype, shape, being
        constant, ...).
        """
        return replace(self, test=test)

    @property
    def maybe(self) -> Capture:
        """The same capture for an optional operand. An omitted operand is captured as None,
        whatever `where` requires.
        """
        return replace(self, absent=True)

    @property
    def const(self) -> Capture:
        """The same capture, restricted to constants."""
        return replace(self, constant=True)

    @property
    def shared(self) -> Capture:
        """The same capture, restricted to values that several bindings read."""
        return self.where(lambda v: v.is_shared)


@frozen(eq=False)
class Literal(Pattern):
    """A constant of this value in any dtype: a number may be a scalar or a vector of one, an
    array has its shape.
    """

    value: Array

    @property
    def origins(self) -> Origins:
        return frozenset({CONSTANT})


@frozen(eq=False)
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
    def calls(self) -> tuple[Call, ...]:
        return (self,)

    @property
    def heads(self) -> Origins:
        return frozenset((self.domain, op) for op in self.ops)

    @property
    def origins(self) -> Origins:
        return self.heads

    @cached_property
    def known(self) -> tuple[tuple[int, Origins], ...]:
        """The operands that only some operators may compute, by index, and these operators."""
        return tuple(
            (i, p.origins)
            for i, p in enumerate(self.operands)
            if p is not None and p.origins is not None
        )

    @cached_property
    def computed(self) -> tuple[tuple[int, tuple[Call, ...]], ...]:
        """The operands that must be results of an operator, by index, and the calls of which each
        must be one.
        """
        return tuple((i, p.calls) for i, p in enumerate(self.operands) if p is not None and p.calls)

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """The operands that only a constant matches, by index."""
        return tuple(i for i, origins in self.known if origins == {CONSTANT})

    @cached_property
    def is_flat(self) -> bool:
        """Whether all operands are captures or None, so that each order of operands has at most one
        match.
        """
        return all(p is None or type(p) is Capture for p in self.operands)

    @property
    def only(self) -> Call:
        """The same call, required to be read only by the binding above it in the pattern, in the
        same block.

        If one binding reads the value several times, write `only` at every use.
        """
        return replace(self, alone=True)

    def named(self, label: str) -> Call:
        """The same call, its binding remembered under `label`."""
        return replace(self, label=label)

    def output(self, index: int) -> Call:
        """The call seen through its output `index`."""
        return replace(self, result=index)


@frozen(eq=False)
class Each(Pattern):
    """All remaining operands or, in a PatternContext, all such bindings. Captures collect lists.

    Captures in `same` are one value that all members share. A capture used in two `Each` is the
    same list in both. at_least, at_most: bounds on the number of members; None: no upper bound.
    """

    pattern: Pattern
    same: tuple[Capture, ...] = ()
    at_least: int = 0
    at_most: int | None = None

    def takes(self, members: int) -> bool:
        """Whether this number of members is allowed."""
        return self.at_least <= members and (self.at_most is None or members <= self.at_most)


@frozen(eq=False)
class Either(Pattern):
    """The first alternative that matches."""

    choices: tuple[Pattern, ...]

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        choices = [choice.calls for choice in self.choices]
        return tuple(call for calls in choices for call in calls) if all(choices) else ()

    @property
    def heads(self) -> Origins | None:
        return _any_of([choice.heads for choice in self.choices])

    @property
    def origins(self) -> Origins | None:
        return _any_of([choice.origins for choice in self.choices])

    def __or__(self, other: Pattern) -> Either:
        return Either((*self.choices, other))


@frozen(eq=False)
class Both(Pattern):
    """A value that both patterns match, with the captures of both."""

    first: Pattern
    second: Pattern

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return self.first.calls or self.second.calls

    @property
    def heads(self) -> Origins | None:
        return _both_of(self.first.heads, self.second.heads)

    @property
    def origins(self) -> Origins | None:
        return _both_of(self.first.origins, self.second.origins)


@frozen(eq=False)
class Not(Pattern):
    """A value that the pattern does not match, given the captures found before; it captures
    nothing.
    """

    pattern: Pattern


def _any_of(choices: Sequence[Origins | None]) -> Origins | None:
    known = [ops for ops in choices if ops is not None]
    return frozenset[tuple[str, str]]().union(*known) if len(known) == len(choices) else None


def _both_of(first: Origins | None, second: Origins | None) -> Origins | None:
    return second if first is None else first if second is None else first & second


def names_in(pattern: Pattern) -> dict[str, None]:
    """Returns the names of a pattern's captures, those of bindings before those inside."""
    names: dict[str, None] = {}
    seen: set[Pattern] = set()

    def read(pattern: Pattern) -> None:
        if pattern in seen:
            return
        seen.add(pattern)
        if isinstance(pattern, Capture):
            names[pattern.name] = None
        elif isinstance(pattern, Call) and pattern.label is not None:
            names[pattern.label] = None
        for inner in () if isinstance(pattern, Not) else pattern.inside:
            read(inner)

    read(pattern)
    return names


@known_keywords
def capture(names: str) -> Any:
    """Returns one capture for each name in a space-separated string: a single capture, or a tuple
    of them.

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
    attributes may be captured too. An `Each` stands for all remaining operands.

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


def _call(op: str, *operands: Any) -> Call:
    call: Call = getattr(P, op)(*operands)
    return call


def _check_attribute(ops: frozenset[str], name: str) -> None:
    """Raises InputError if one of these operators of ONNX has no such attribute in any version."""
    for op in ops:
        if onnx.defs.has(op) and not any(name in attributes for attributes in _versions(op)):
            known = set[str]().union(*_versions(op))
            raise InputError(
                f"{op} has no attribute '{name}': it has {', '.join(sorted(known)) or 'none'}"
            )


def _versions(op: str) -> Iterator[Collection[str]]:
    """Yields the attributes of an operator of ONNX in each version, the newest first."""
    version = onnx.defs.onnx_opset_version()
    while onnx.defs.has(op, max_inclusive_version=version):
        schema = onnx.defs.get_schema(op, max_inclusive_version=version)
        yield schema.attributes.keys()
        version = schema.since_version - 1


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
