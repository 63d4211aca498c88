"""How constants were computed from the weights of a file, recorded while a model is rewritten.

While a program has `Derivations`, `Var.const` of a weight returns a `Traced` array (see
`ir.traced_arrays`). Functions of numpy and arithmetic on it compute as before and also record a
`Step`. The truth value of a traced array becomes a predicate, such as "all factors are positive".
Any other use of its elements, even one through a function that is not known there, becomes the
predicate that every element stays as it is. So a rule that nobody prepared for new weights is
refused for other values, never silently stale.

The predicates of an attempt count if it rewrites. Integers and booleans are not traced, as they
decide sizes and branches: they must stay.

Replaying the recorded rewrites on the original would be simpler, but reading a model as a Program
alone takes a quarter of `optimize` without proof (bert: 13 of 53 ms), and the bar is a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto

# Not frozen: a record is read as thousands of these objects, and freezing doubles their time.


@dataclass(eq=False, slots=True)
class Step:
    """One computation. `kind`: "weight" (`what` is the name of an initializer), "fixed" (an
    initializer that must stay), "literal", "numpy", "call" (of a function that `@predicate`
    or `@recorded` declares), "astype", "getitem", "part" or "node" (`what` is a Node). `operands`
    are the arguments, Steps among them.
    """

    kind: str
    what: Any
    operands: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def traced(self) -> bool:
        """Whether the value depends on weights that may change."""
        return self.kind not in ("fixed", "literal")

    def __str__(self) -> str:
        return _text(self, 4)


LITERAL = Step("literal", None)


def operands_of(step: Step) -> list[Step]:
    """The steps among the operands of a step."""
    given: Sequence[Any] = step.operands
    if step.keywords:
        given = [*given, *step.keywords.values()]
    found = [v for v in given if type(v) is Step]
    if len(found) < len(given):
        work = [v for v in given if type(v) in _NESTED]
        for v in work:  # grows
            for inner in v.values() if type(v) is dict else v:
                if type(inner) is Step:
                    found.append(inner)
                elif type(inner) in _NESTED:
                    work.append(inner)
    return found


_NESTED = (list, tuple, dict)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A node that onnxruntime evaluated: `index` of its results, its dtype, and the opset."""

    proto: NodeProto
    index: int
    dtype: int
    opset: int


@dataclass(eq=False, slots=True)
class Predicate:
    """A fact about weights: the truth value of a step; for `same`, that all of its elements are
    those of `value`, or those of another step.
    """

    step: Step
    value: Any
    same: bool = False

    def __str__(self) -> str:
        if not self.same:
            return str(self.step) if self.value else f"not {self.step}"
        if isinstance(self.value, Step):
            return f"{self.step} = {self.value} in every element"
        if self.value.size == 1:
            return f"{self.step} = {self.value.item()!r:.30}"
        return f"{self.step} keeps its {self.value.size} elements"


@dataclass(eq=False, slots=True)
class Held:
    """A predicate that a rewrite relied on."""

    pass_name: str
    rule: str
    where: str
    predicate: Predicate


@dataclass(eq=False)
class ReadWeights:
    """The names of weights whose values were read: `pending` since the last rewrite or attempt,
    `held` by rewrites.
    """

    pending: dict[str, None] = field(default_factory=dict)
    held: dict[str, None] = field(default_factory=dict)

    def commit(self, pass_name: str, rule: str, where: str) -> None:
        """Keeps the pending names: a rewrite read their values."""
        self.held |= self.pending
        self.pending.clear()

    def mark(self) -> tuple[int, ...]:
        """Returns how much is pending, for `forget`."""
        return (len(self.pending),)

    def forget(self, since: tuple[int, ...] = (0,)) -> None:
        """Drops the names of an attempt that declined."""
        while len(self.pending) > since[0]:
            self.pending.popitem()


@dataclass(eq=False)
class Derivations:
    """The predicates of the weights of one program: `pending` since the last rewrite or attempt,
    `held` by rewrites. `read`: the weights whose values were read. `shapes`: of steps whose
    elements were reshaped.
    """

    pending: list[Predicate] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    read: ReadWeights = field(default_factory=ReadWeights)
    shapes: dict[Step, tuple[int, ...]] = field(default_factory=dict)

    def commit(self, pass_name: str, rule: str, where: str) -> None:
        """Keeps the pending predicates: a rewrite relied on them."""
        self.held += [Held(pass_name, rule, where, p) for p in self.pending]
        self.pending.clear()
        self.read.commit(pass_name, rule, where)

    def mark(self) -> tuple[int, ...]:
        """Returns how much is pending, for `forget`."""
        return (len(self.pending), *self.read.mark())

    def forget(self, since: tuple[int, ...] = (0, 0)) -> None:
        """Drops the predicates of an attempt that declined."""
        del self.pending[since[0] :]
        self.read.forget(since[1:])


_SIGNS = {
    "add": "+", "divide": "/", "equal": "==", "greater": ">", "greater_equal": ">=", "less": "<",
    "less_equal": "<=", "multiply": "*", "not_equal": "!=", "subtract": "-",
}  # fmt: skip


def _text(value: Any, depth: int) -> str:
    """A step as a formula, to some depth."""
    if not isinstance(value, Step):
        size = np.size(value) if isinstance(value, (np.ndarray, np.generic)) else 1
        return str(value) if size == 1 else "..."
    if value.kind == "weight":
        return str(value.what)
    operands = list(value.operands)
    if value.kind in ("astype", "getitem", "part"):
        return _text(operands[0], depth)
    if not depth:
        return "..."
    name = value.what.proto.op_type if value.kind == "node" else str(value.what)
    if name == "reshape":
        return _text(operands[0], depth)
    flat = [x for o in operands for x in (o if isinstance(o, (list, tuple)) else [o])]
    shown = [_text(x, depth - 1) for x in flat if x is not None]
    if name in _SIGNS and len(shown) == 2:
        return f"({shown[0]} {_SIGNS[name]} {shown[1]})"
    return f"{name}({', '.join(shown)})"
