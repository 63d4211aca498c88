"""Groups that a user's pattern describes (TVM's FuseOpsByPattern): which bindings of a match they
hold, and what is handed to their function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import defs

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import canonical
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.outlining.calls import DOMAIN, Group, outer
from onnxgrad.rewrite.captures import heads, names_in
from onnxgrad.rewrite.match import match_binding
from onnxgrad.rewrite.pattern import Call, Capture, Pattern
from onnxgrad.rewrite.trace import Decline, decline

# elements of a constant that the pattern itself names, up to which it becomes part of the body
_HELD = 64


@dataclass(frozen=True, eq=False)
class Composite:
    """What matches `pattern` becomes a call of `domain::name`. `body`: the file keeps the function;
    without, the operator is the runtime's. `check` may refuse a match.
    """

    name: str
    domain: str
    pattern: Pattern
    body: bool
    check: Callable[[Mapping[str, Any]], bool] | None


@known_keywords
def outline_as(
    name: str,
    pattern: Pattern,
    *,
    body: bool = True,
    check: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Composite:
    """Among passes, or at the top of a plugin: every match of `pattern` becomes a call of the local
    function `name` ("Operator", or "domain::Operator").

    Operands are the captures in the pattern's order, then what else the matched operators read; an
    attribute that is captured becomes an attribute of the call. A match is left alone where
    something else reads what is inside, and where `check`, given the captures by name, says no.
    With `body=False` the function is proved and then left out of the file: the operator is one
    that the runtime has. Raises InputError for a name of ONNX's own, and a pattern that is not
    that of an operator.
    """
    domain, _, operator = name.rpartition("::")
    if not operator.isidentifier():
        raise InputError(f"outline_as: '{name}' is no name of an operator: write domain::Operator")
    if not isinstance(pattern, Pattern) or heads(pattern) is None:
        raise InputError(f"outline_as '{name}': the pattern's root is an operator, as in P.Relu(x)")
    domain = domain or DOMAIN
    if canonical(domain) == "" or any(s.domain == domain for s in defs.get_all_schemas()):
        raise InputError(f"outline_as '{name}': the domain is ONNX's own, choose another")
    return Composite(operator, domain, pattern, body, check)


def group_at(composite: Composite, root: Binding, position: Mapping[Binding, int]) -> Group | None:
    """The group that ends at `root`; None where the pattern does not match. Raises Decline where it
    does, and cannot be cut out.
    """
    declined: Decline | None = None
    for captured in match_binding(composite.pattern, root):
        try:
            return _group(composite, root, captured, position)
        except Decline as reason:
            declined = reason
    if declined is not None:
        raise declined
    return None


def _group(
    composite: Composite,
    root: Binding,
    captured: Mapping[Any, Any],
    position: Mapping[Binding, int],
) -> Group:
    calls = {b: key for key, v in _calls(captured) if (b := v.definition) is not None}
    if any(b not in position or b.blocks for b in calls):
        raise decline("part of it stands in another block, or holds one")
    members = sorted(calls, key=position.__getitem__)
    _check_inside(root, members)
    named = {n: captured[n] for n in dict.fromkeys(names_in(composite.pattern)) if n in captured}
    if composite.check is not None and not composite.check(named):
        raise decline("refused by the check")
    read = outer(members)
    first = [v for v in _values(named.values()) if v in set(read)]
    inside = {v: a for v in read if v not in first and (a := _held(v)) is not None}
    operands = dict.fromkeys([*first, *(v for v in read if v not in inside)])
    return Group(
        members, list(operands), composite.domain, composite.name, inside, _parameters(calls), True
    )


def _calls(captured: Mapping[Any, Any]) -> Iterator[tuple[Call, Var]]:
    """The operators of the pattern and the values that they stand for."""
    for key, value in captured.items():
        if isinstance(key, Call):
            yield from ((key, v) for v in _values([value]))


def _values(found: Any) -> Iterator[Var]:
    for value in found:
        if isinstance(value, Var):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _values(value)


def _check_inside(root: Binding, members: Sequence[Binding]) -> None:
    """Raises Decline where something outside reads a result inside, or the root has more than
    one.
    """
    own = set(members)
    for b in members:
        results = [v for v in b.outputs if v is not None and v.use_count]
        for v in results if b is not root else [v for v in results if v is not root.out]:
            if b is root or v.returned or not own.issuperset(v.users):
                raise decline(f"{v.name} is read outside as well")


def _held(v: Var) -> Array | None:
    """The value of a small constant that no capture names."""
    array = v.const if v.is_constant else None
    return None if array is None or array.size > _HELD else array


def _parameters(calls: Mapping[Binding, Call]) -> dict[tuple[Binding, str], str]:
    return {
        (b, name): wanted.name
        for b, key in calls.items()
        for name, wanted in key.attrs
        if isinstance(wanted, Capture) and b.attr(name) is not None
    }
