"""A derived file depends on the value of a weight only through that weight.

A second derivative, a map over a weight, training and a replacement change the initializer. A
constant that was computed from it before would keep the old value. While a derivative is formed,
the values of float initializers and Constants are therefore hidden: no rule and no law computes
from them or decides by them.

One-element numbers of formulas (exponents, scales, epsilons) stay readable, because closed forms
depend on them. The file's metadata names those that were read, and those weights of which
`optimize` computed other constants, and a later request to change one of them is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from onnxgrad.errors import InputError
from onnxgrad.grad.weights.decision import decide
from onnxgrad.grad.weights.readers import is_one
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.origins import use_values, values_used
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var
from onnxgrad.wording import option, some_of

_SHOWN = 4

_FINAL: ContextVar[bool] = ContextVar("onnxgrad_final", default=False)


@contextmanager
def final(folds: bool) -> Iterator[None]:
    """Within this context, files may contain constants computed from weights, if `folds`."""
    before = _FINAL.set(folds)
    try:
        yield
    finally:
        _FINAL.reset(before)


@contextmanager
def kept(program: Program, requested: Iterable[Var] = ()) -> Iterator[None]:
    """Hides the values of weights and of `requested` constants within this context, and adds the
    numbers that were read to the program's metadata. Contexts may be nested.
    """
    if _FINAL.get():
        yield
        return
    hidden, numbers = _divided(program.blocks(), set(requested))
    read, before = _Numbers(), [v.reads for v in numbers]
    for v in hidden:
        v.hidden = True
    for v in numbers:
        v.reads = read
    try:
        yield
    finally:
        for v in hidden:
            v.hidden = False
        for v, reads in zip(numbers, before, strict=True):
            v.reads = reads
        use_values(program, read)


class _Numbers(dict[str, None]):
    """The numbers that were read within a context of `kept`."""


def nested_weights(program: Program) -> list[Var]:
    """Returns the constants inside If, Loop and Scan whose values `kept` hides. A gradient runs
    such a block again, and both runs must read one constant: the caller moves them to the main
    graph. The graphs of other operators stay, because bodies that read outer values cannot be
    opened.
    """
    return _divided([b for b in blocks_in(program.main)[1:] if _is_run_again(b)])[0]


def _is_run_again(block: BindingBlock) -> bool:
    owner = block.owner
    return owner is None or (
        not owner.domain and owner.op in ("If", "Loop", "Scan") and _is_run_again(owner.block)
    )


def _divided(
    blocks: Sequence[BindingBlock], requested: Collection[Var] = ()
) -> tuple[list[Var], list[Var]]:
    """Returns the float constants whose values are hidden, and the readable numbers. Those of an
    enclosing context and those that formulas emitted belong to neither.
    """
    floats = [
        v
        for block in blocks
        for v in _stored(block)
        if v.dtype in FLOAT_DTYPES
        and not (v.hidden or v.is_literal or isinstance(v.reads, _Numbers))
    ]
    ones = [v for v in floats if is_one(v)]
    decisions = decide(ones[0].block.program, ones) if ones else {}
    numbers = [v for v in ones if not decisions[v].is_weight]
    numbers += [v for v in floats if not is_one(v) and _measures(v)]
    readable = dict.fromkeys(v for v in numbers if v not in requested)
    return [v for v in floats if v not in readable], list(readable)


def _stored(block: BindingBlock) -> Iterator[Var]:
    """Yields the initializers and the results of Constants."""
    yield from block.initializers.values()
    yield from (b.out for b in block.bindings if b.is_op("Constant") and b.out.is_constant)


# operands that determine a shape or a mode; rules read their values
_MEASURES = {"Resize": (1, 2), "Upsample": (1,)}
# by these exporters put such an operand together
_JOINS = frozenset({"Cast", "CastLike", "Concat", "Identity"})


def _measures(v: Var) -> bool:
    return v.rank == 1 and any(
        _measures(b.out) if b.op in _JOINS else set(b.places(v)) <= set(_MEASURES.get(b.op, ()))
        for b in v.users
        if not b.domain
    )


def check_replaceable(program: Program, names: Collection[str], what: str) -> None:
    """Raises InputError if one of the initializers `names` decided the form of this file. `what`:
    the request, as a phrase such as "differentiating by".
    """
    for name in _decisive(program, names)[:1]:
        raise InputError(
            f"{what} '{name}' would be wrong: its value decided the form of this file when it "
            "was derived or optimised; begin with the original model, and name it in wrt of a "
            f"derivation, or optimise with {_training_safe()}"
        )


def note_of_decisive(program: Program, names: Collection[str]) -> list[str]:
    """Returns a note on those of the initializers `names` that decided the form of this file, if
    there are any.
    """
    found = [f"'{name}'" for name in _decisive(program, names)]
    if not found:
        return []
    return [
        f"the values of {some_of(found, _SHOWN)} are in other constants of this file, too, or are "
        "those of several weights: a derivative by them is not that of the original model; begin "
        f"with that, or optimise it with {_training_safe()}"
    ]


def _decisive(program: Program, names: Collection[str]) -> list[str]:
    used = {v.name for v in _stored(program.main)}.intersection(values_used(program))
    return [name for name in names if name in used]


def _training_safe() -> str:
    return option("--preset training-safe", "preset='training-safe'")
