"""The values to keep between a forward and a backward part, as a minimum cut over bytes.

A value that the backward part reads is either kept or computed again from kept values. Each binding
and each value is a node of a network. A binding on the sink's side is computed again; a value on
the sink's side is available to the backward part. A cut edge costs the bytes of a value that is
kept, or the work of a binding that is computed again. (The partitioner of PyTorch's AOTAutograd
solves the same problem: https://dev-discuss.pytorch.org/t/467.)

Policies: "auto" computes cheap bindings again and prefers few values; "everything" keeps all values
that the backward part reads. "products" keeps results of matrix products, "nothing" keeps only
inputs, names keep these values and all results of operators of these names; all three compute the
rest again. A budget in bytes keeps the values that save the most work. Random draws are always
kept.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.checkpointing.costs import (
    can_be_kept,
    compares,
    is_cheap,
    is_exact,
    is_product,
    size_of,
    work_of,
)
from onnxgrad.grad.checkpointing.minimum_cut import UNLIMITED, Network
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.var import Var
from onnxgrad.vocabulary import POLICIES
from onnxgrad.wording import option, perhaps

Keep: TypeAlias = "str | int | Sequence[str]"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST = 1 << 62  # bytes that no machine has
# capacities of a kept byte and of a byte of work; each value or binding costs one more, so that
# the smallest of equal cuts is chosen
_BYTE = 1 << 12
_AGAIN = 1 << 8
# what "auto" adds to each kept value and to each binding: the time of an output and of a node apart
# from their elements, as kept bytes
_OUTPUT, _NODE = 1 << 12, 1 << 10
# steps of the bisection that fits the price of work to a budget
_STEPS = 12


@frozen
class Dataflow:
    """The forward part.

    bindings: in order. needed: the values that the backward part reads. free: the values that cost
    nothing to keep. dims: sizes of symbols.
    """

    bindings: Sequence[Binding]
    needed: Collection[Var]
    free: Collection[Var]
    dims: Mapping[str, int] = field(default_factory=dict)
    # bindings outside of the forward part that read its values, and may compare them
    readers: Sequence[Binding] = ()
    # values that fusion keeps out of memory if the forward part runs alone
    fused: Collection[Var] = ()


@frozen
class Kept:
    """The values that are kept, in order, and the bindings that are computed again."""

    values: Sequence[Var]
    again: Collection[Binding]
    bytes: int


def bytes_of(text: str) -> int | None:
    """Returns the number of bytes for a text such as "512MB"; None for other texts."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)i?B?\s*", text, re.IGNORECASE)
    # a number with very many digits is infinity as a float
    return match and int(min(float(match[1]) * _UNITS[match[2].upper()], _LARGEST))


def choose_kept(flow: Dataflow, keep: Keep) -> Kept:
    """Chooses the kept values by a policy, names or globs of values and operators, or a budget in
    bytes. Raises InputError for an unknown name, a value that can neither be kept nor computed
    again, and a budget that cannot be met.
    """
    if isinstance(keep, str):
        size = bytes_of(keep)
        keep = keep if keep in POLICIES else size if size is not None else [keep]
    if isinstance(keep, int):
        return _within(flow, keep)
    if isinstance(keep, str):
        return _cut(flow, keep)
    return _cut(flow, "names", set(_named(flow, keep)))


def _named(flow: Dataflow, names: Iterable[str]) -> list[Var]:
    values = {v.name: [v] for v in flow.free}
    values |= {v.name: [v] for b in flow.bindings for v in b.outputs if v is not None}
    for b in flow.bindings:
        made = [v for v in b.outputs if v is not None]
        values.setdefault(full_name(b.domain, b.op), []).extend(made)
    found: list[Var] = []
    for name in names:
        matching = [
            v for n, vs in values.items() if n == name or fnmatch.fnmatchcase(n, name) for v in vs
        ]
        if not matching:
            raise InputError(
                f"{option('--keep', 'keep:')} '{name}' is no value or operator of the forward part"
                f"{perhaps(name, values, 3)}; policies are {', '.join(POLICIES)}"
            )
        found += matching
    return found


def _within(flow: Dataflow, budget: int) -> Kept:
    """Returns the cut with the highest price of work whose kept values fit the budget."""
    least = _cut(flow, "work", price=0)
    if least.bytes > budget:
        raise InputError(
            f"{option('--keep', 'keep:')} {budget} bytes do not suffice: the backward part needs "
            f"at least {least.bytes} (inputs and outputs of the model are not counted)"
        )
    most = _cut(flow, "everything")
    if most.bytes <= budget:
        return most
    low, high, best = 0, _BYTE, least
    for _ in range(_STEPS):
        middle = (low + high) // 2
        found = _cut(flow, "work", price=middle)
        if found.bytes <= budget:
            low, best = middle, found
        else:
            high = middle
    return best


def _cut(flow: Dataflow, policy: str, named: Collection[Var] = (), price: int = _AGAIN) -> Kept:
    """Returns the minimum cut. `price` is the capacity of a byte of work, `_BYTE` of a kept
    byte.
    """
    network, free = Network(), dict.fromkeys(flow.free)
    output, node = (_OUTPUT, _NODE * _BYTE) if policy == "auto" else (0, 0)
    source, sink = "source", "sink"
    fixed = set(flow.bindings) if policy == "everything" else _compared(flow)
    # a sequence is computed again, because no input can hold it
    fixed -= {b for b in flow.bindings if not _can_be_kept(b)}
    drawn = {b for b in flow.bindings if any(draws(inner) for inner in _with_inner(b))}
    for given in free:
        network.add(source, given, int(policy == "names" and given not in named))
    for b in flow.bindings:
        once = b in drawn or b in fixed or (_is_once(b, policy) and _can_be_kept(b))
        weight = price if policy in ("auto", "work") else 0
        # onnxruntime removes an Identity, unless the graph returns its result
        work = work_of(b, flow.dims) * weight + node * (not b.is_op("Identity")) + 1
        network.add(source, b, UNLIMITED if once else work)
        kept = once if policy in ("nothing", "products", "names") else True
        for v in b.outputs:
            if v is None or v in free:
                continue
            size = 0 if v in named else (size_of(v, flow.dims) + output) * _BYTE
            size += size // 4 if v in flow.fused else 0
            network.add(b, v, size + 1 if can_be_kept(v) and (kept or v in named) else UNLIMITED)
        for read in b.reads():
            if not read.is_constant:
                network.add(read, b, UNLIMITED)
    for needed in flow.needed:
        network.add(needed, sink, UNLIMITED)
    side = network.cut(source, sink)
    if side is None:
        raise InputError(_why(flow))
    values = [v for v in free if v in side]
    made = [v for b in flow.bindings if b not in side for v in b.outputs if v is not None]
    values += [v for v in made if v in side and v not in free]
    counted = sum(size_of(v, flow.dims) for v in values if v not in free)
    return Kept(values, dict.fromkeys(b for b in flow.bindings if b in side), counted)


def _can_be_kept(b: Binding) -> bool:
    return all(v is None or can_be_kept(v) for v in b.outputs)


def _is_once(b: Binding, policy: str) -> bool:
    """Whether a policy forbids computing a binding again."""
    return (policy == "auto" and not is_cheap(b)) or (policy == "products" and is_product(b))


def _with_inner(b: Binding) -> Iterable[Binding]:
    yield b
    for block in b.blocks.values():
        yield from block.walk()


def _compared(flow: Dataflow) -> set[Binding]:
    """Returns bindings whose results, or selections of them, are compared for equality. A second
    run in other kernels may round differently, and then no element equals its own maximum.
    """
    known, found = set(flow.bindings), set[Binding]()
    todo = [v for b in (*flow.readers, *flow.bindings) if compares(b) for v in b.reads()]
    seen = set(todo)
    while todo:
        maker = todo.pop().definition
        if maker is None or maker not in known:
            continue
        if not is_exact(maker):
            found.add(maker)
            continue
        fresh = [v for v in maker.reads() if v not in seen]
        seen.update(fresh)
        todo += fresh
    return found


def _why(flow: Dataflow) -> str:
    """Returns the error text that names the values that can neither be kept nor computed again."""
    untyped = [
        f"'{v.name}' of '{b}'"
        for b in flow.bindings
        for v in b.outputs
        if v is not None and not can_be_kept(v)
    ]
    return (
        "the backward part needs a value that cannot be computed again, nor be kept, because it is "
        f"no tensor of a known type: {', '.join(untyped[:3])}"
    )
