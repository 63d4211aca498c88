"""Chooses recomputed segments automatically: about sqrt(n), or as few as fit a memory budget.

The method is that of Chen, Xu, Zhang & Guestrin, Training Deep Nets with Sublinear Memory Cost,
2016. Boundaries lie where few bytes are alive; in a residual network, that is the residual stream
alone. The last segment is not recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.checkpointing.costs import is_product, size_of
from onnxgrad.grad.checkpointing.keeping import bytes_of
from onnxgrad.grad.checkpointing.marks import drop, write
from onnxgrad.grad.checkpointing.recomputation import Checkpoint, Marks, Use, resolve
from onnxgrad.grad.control_flow.loop import state_types, typed_step
from onnxgrad.grad.paths import influenced, reaching
from onnxgrad.grad.targets import Target, find_targets
from onnxgrad.grad.wrt import Wrt, find_wrt
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import byte_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.vocabulary import POLICIES

# nodes carry metadata from that IR version on
_METADATA_SINCE = 10
_LARGE = 1 << 22  # bytes
# numbers of segments whose bytes are so many times those of the best are not worth forming
_HOPEFUL = 1.75


@frozen
class Segments:
    """A choice of about this many boundaries, or of those behind the bindings that compute the
    values `after`. It is an InputError if sizes are open.
    """

    count: int
    after: tuple[str, ...] = ()


@dataclass(eq=False)
class Balanced:
    """The number of segments for which kept values and the largest segment take the fewest bytes.
    `choose` fills in these bytes and the boundaries for each number, and all places where fewer
    bytes are alive than before and behind.
    """

    bytes: dict[int, int] = field(default_factory=dict)
    after: dict[int, tuple[str, ...]] = field(default_factory=dict)
    places: Sequence[str] = ()

    @property
    def best(self) -> Segments:
        """The choice of that number."""
        return Segments(min(self.bytes, key=self.bytes.__getitem__))


Choice: TypeAlias = (
    "Checkpoint | Segments | Balanced | Mapping[str, Sequence[Use]] | Sequence[str] | str | int "
    "| None"
)


def mark(program: Program, wrt: Wrt, target: Target, checkpoint: Choice) -> Marks:
    """Writes the marks that `checkpoint` chooses, replacing existing ones. Returns the new
    marks.
    """
    block = program.main
    block.schedule()
    targets = find_targets(block, target, scalar=False)
    requested = find_wrt(block, wrt, targets, {v.name: v for v in block.vars()})
    passed = influenced(block, requested) & reaching(block, targets)
    marks = choose(
        block, checkpoint, [b for b in block.bindings if any(v in passed for v in b.outputs)]
    )
    drop(program.blocks())
    write(marks)
    if marks.start or marks.end:
        program.ir_version = max(program.ir_version, _METADATA_SINCE)
    return marks


def choose(block: BindingBlock, choice: Choice, needed: Iterable[Binding]) -> Marks:
    """Returns the marks for `checkpoint=`: a Checkpoint or its fields by name, value names (each
    starts a segment), segments, "auto", or another policy of `keeping`.

    `needed` are the forward bindings that the backward part differentiates. `differentiation`
    chooses segments for a budget. Raises InputError for segments if dimensions are open.
    """
    if isinstance(choice, Mapping):
        choice = Checkpoint(**choice)
    if isinstance(choice, Checkpoint):
        return resolve(block, choice)
    if isinstance(choice, Segments):
        return _segmented(block, list(needed), choice)
    if isinstance(choice, str) and choice in POLICIES and choice != "auto":
        return _by_policy(block, list(needed), choice)
    if choice == "auto" or isinstance(choice, Balanced):
        balanced = choice if isinstance(choice, Balanced) else Balanced()
        return _automatic(block, list(needed), balanced)
    return resolve(block, Checkpoint(start=list(choice if isinstance(choice, Sequence) else ())))


def budget_of(choice: Choice) -> int | None:
    """Returns the bytes of a budget, None for other choices. Raises InputError for a text that is
    neither a policy nor a budget.
    """
    if not isinstance(choice, str) or choice in POLICIES:
        return choice if isinstance(choice, int) else None
    size = bytes_of(choice)
    if size is None:
        raise InputError(
            f"checkpoint '{choice}' is neither one of {', '.join(POLICIES)} nor a memory budget "
            "such as 512MB; list names instead"
        )
    return size


def is_estimated(program: Program, choice: Choice) -> bool:
    """Whether the choice is made by the estimated memory of gradients: for a budget, and for "auto"
    if the values of the model have known sizes and take at least 4 MB.
    """
    if budget_of(choice) is not None:
        return True
    made = [v for b in program.main.bindings for v in b.outputs if v is not None]
    if choice != "auto" or any(b.blocks for b in program.main.bindings):
        return False
    return all(is_static(v.shape) for v in made) and sum(map(size_of, made)) >= _LARGE


def plans(balanced: Balanced, budget: int | None) -> list[Choice]:
    """Returns the other choices that are worth forming for a budget or for "auto", ordered from the
    least recomputation. For a budget, those of too many bytes come last.
    """
    most, sizes = balanced.best.count, balanced.bytes
    least = sizes[most]
    if budget is None:
        doubled = [3 << i for i in range(most.bit_length()) if 3 << i < most]
        return [Segments(n) for n in doubled if sizes[n] <= _HOPEFUL * least]
    found = [1]
    while found[-1] < 2 * most:
        found.append(max(found[-1] + 1, found[-1] * 3 // 2))
    counts = [n for n in found if n in sizes and n != most]
    counts.sort(key=lambda n: sizes[n] > _HOPEFUL * max(budget, least))
    return ["products", *map(Segments, counts)]


def neighbours(balanced: Balanced, choice: Segments) -> Iterator[Segments]:
    """Yields choices that differ in one boundary, from the last on: one more, one less, or one that
    moves by one place or halfway to the next.
    """
    rank = {name: i for i, name in enumerate(balanced.places)}
    cuts = sorted(rank[name] for name in choice.after or balanced.after[choice.count])
    edges = [-1, *cuts, len(rank)]
    moved = [[*cuts, (a + b) // 2] for a, b in reversed(list(pairwise(edges)))]
    for i in reversed(range(len(cuts))):
        low, here, high = edges[i : i + 3]
        rest = [c for c in cuts if c != here]
        halves = ((here + high) // 2, (low + here + 1) // 2)
        moved += [[*rest, c] for c in dict.fromkeys((*halves, here + 1, here - 1))]
        moved.append(rest)
    for found in moved:
        names = tuple(balanced.places[c] for c in sorted(set(found)) if 0 <= c < len(rank))
        if names:
            yield Segments(len(names), names)


def _segmented(block: BindingBlock, needed: list[Binding], choice: Segments) -> Marks:
    inside = {b: footprint(b) for b in needed if b.blocks}
    forward = _forward(needed, inside)
    _refuse_open(forward, inside)
    if not choice.after:
        return _marks(block, forward, _cuts(forward, choice.count) if choice.count else [])
    return _marks(
        block, forward, [i for i, b in enumerate(forward.order) if _name(b) in choice.after]
    )


def _name(b: Binding) -> str:
    return next(v.name for v in b.outputs if v is not None)


def _by_policy(block: BindingBlock, needed: list[Binding], policy: str) -> Marks:
    """Returns the marks that keep the results of products ("products"), or only inputs ("nothing");
    no marks for "everything".
    """
    if policy == "everything":
        return Marks(frozenset(), frozenset())
    kept = {v for b in needed for v in b.outputs if policy == "products" and is_product(b)}
    known = {v for b in needed for v in b.outputs if v is not None}
    lost = known - kept
    start, end = set[tuple[Var, Binding]](), set[tuple[Var, Binding]]()
    for b in needed:
        if draws(b) or (policy == "products" and is_product(b)):
            end.update((v, b) for v in b.reads() if v in lost)
        else:
            start.update((v, b) for v in b.reads() if v not in lost and not v.is_constant)
    return Marks(frozenset(start), frozenset(end))


@frozen
class _Forward:
    """The forward bindings in order, with the bytes that each defines or keeps inside, and the
    values alive after each.
    """

    order: list[Binding]
    bytes: list[int]
    alive: list[list[Var]]
    alive_bytes: list[int]


def _automatic(block: BindingBlock, needed: list[Binding], balanced: Balanced) -> Marks:
    forward = _forward(needed, {b: footprint(b) for b in needed if b.blocks})
    cuts = {k: _cuts(forward, k) for k in range(1, 4 * math.isqrt(len(forward.order)) + 2)}
    balanced.bytes.update((k, _peak(forward, found)) for k, found in cuts.items())
    names, alive = [_name(b) for b in forward.order], [math.inf, *forward.alive_bytes]
    balanced.after.update((k, tuple(names[c] for c in found)) for k, found in cuts.items())
    used = {c for found in cuts.values() for c in found}
    balanced.places = [
        name
        for i, name in enumerate(names[:-1])
        if i in used or alive[i] >= alive[i + 1] <= alive[i + 2]
    ]
    return _marks(block, forward, cuts[balanced.best.count])


def _refuse_open(forward: _Forward, inside: Mapping[Binding, int | None]) -> None:
    """Raises InputError if a size is unknown, because a budget needs all sizes."""
    if any(v.rank is None or not is_static(v.shape) for b in forward.order for v in _results(b)):
        raise InputError(
            "a memory budget needs known sizes, and the model has open dimensions: "
            'use "auto" or names'
        )
    open_ = next((b for b, size in inside.items() if size is None), None)
    if open_ is not None:
        raise InputError(
            f"a memory budget needs known sizes, and how many steps '{open_}' takes, or what it "
            "keeps of each, is "
            'not known beforehand: use "auto" or names'
        )


def _forward(needed: list[Binding], inside: Mapping[Binding, int | None]) -> _Forward:
    order = [b for b in needed if b.inputs]
    place = {b: i for i, b in enumerate(order)}
    last = {
        v: max((place[u] for u in v.users if u in place), default=-1)
        for b in order
        for v in _results(b)
    }
    alive: list[list[Var]] = []
    now: dict[Var, None] = {}
    for i, b in enumerate(order):
        now.update((v, None) for v in _results(b))
        for v in [v for v in now if last[v] <= i]:
            del now[v]
        alive.append(list(now))
    bytes_ = [sum(map(size_of, _results(b))) + (inside.get(b, 0) or 0) for b in order]
    return _Forward(order, bytes_, alive, [sum(map(size_of, values)) for values in alive])


def _results(b: Binding) -> list[Var]:
    return [v for v in b.outputs if v is not None and v.users]


def _cuts(forward: _Forward, count: int) -> list[int]:
    """Returns about `count` boundaries that split the bytes evenly: near each equal share, the
    position at which the fewest bytes are alive.
    """
    total, passed = max(sum(forward.bytes), 1), 0
    windows: list[list[tuple[int, float, int]]] = [[] for _ in range(count)]
    for i, size in enumerate(forward.bytes[:-1]):
        passed += size
        share = passed * (count + 1) / total
        nearest = round(share)
        if 1 <= nearest <= count:
            windows[nearest - 1].append((forward.alive_bytes[i], abs(share - nearest), i))
    return [min(w)[2] for w in windows if w]


def _peak(forward: _Forward, cuts: Sequence[int]) -> int:
    """Returns the bytes kept at the boundaries, plus those of the largest segment."""
    kept = sum(map(size_of, {v for c in cuts for v in forward.alive[c]}))
    edges = [-1, *cuts, len(forward.order) - 1]
    return kept + max(sum(forward.bytes[a + 1 : b + 1]) for a, b in pairwise(edges))


def _marks(block: BindingBlock, forward: _Forward, cuts: Sequence[int]) -> Marks:
    """Returns start marks on every use, in a segment, of a value from before it. The last segment,
    which is not recomputed, gets end marks instead.
    """
    if not cuts:
        return Marks(frozenset(), frozenset())
    before = {v for v in block.inputs if v.initializer is None}
    begin, uses = 0, []
    for end in (*cuts, len(forward.order) - 1):
        inside = forward.order[begin : end + 1]
        uses.append(frozenset((v, b) for b in inside for v in b.reads() if v in before))
        before.update(v for b in inside for v in _results(b))
        begin = end + 1
    return Marks(frozenset().union(*uses[:-1]), uses[-1])


# ---- what control flow keeps besides results: the tape of a Loop or Scan, one run of each body ---


# onnxruntime holds the steps of a tape one by one, then stacked
_TWICE = 2


def footprint(b: Binding) -> int | None:
    """Returns the bytes that the gradient of `b` keeps or needs at once inside its bodies; None if
    a size is open, or the number of steps is not known beforehand.
    """
    if not b.blocks:
        return 0
    if b.is_op("Loop"):
        return _loop(b)
    parts = [_values(block) for block in b.blocks.values()]
    if b.is_op("Scan"):
        parts.append(_scan_tape(b))
    return _total(parts)


def _loop(b: Binding) -> int | None:
    steps, body = b.inputs[0], b.blocks["body"]
    count = None if steps is None or steps.const is None else int(steps.const.reshape(()))
    initial = [v for v in b.inputs[2:] if v is not None]
    with emitting(b.block):
        types = state_types(body, initial)
        scratch, _ = typed_step(body, types)
        inside = _values(scratch)
        scratch.release()
    if count is None:
        return None
    tape = _total([byte_count(t) for t in types])
    return None if tape is None else _total([inside, _TWICE * count * (tape + 8), _captured(body)])


def _scan_tape(b: Binding) -> int | None:
    states = b.inputs[: len(b.inputs) - b.attr("num_scan_inputs")]
    first = b.inputs[len(states)]
    axis = (b.attr("scan_input_axes") or [0])[0]
    steps = None if first is None or first.shape is None else first.shape[axis]
    tape = _total([None if v is None else byte_count(v.type) for v in states])
    if tape is None or not isinstance(steps, int):
        return None
    return _total([_TWICE * steps * tape, *(_captured(body) for body in b.blocks.values())])


def _captured(body: BindingBlock) -> int | None:
    """Returns the bytes for the sums of adjoints of captured values, before and after a step."""
    once = _total([byte_count(v.type) for v in dict.fromkeys(body.captures())])
    return None if once is None else _TWICE * once


def _values(block: BindingBlock) -> int | None:
    """Returns the bytes of all values that the block computes in one run."""
    own = [byte_count(v.type) for b in block.bindings for v in b.outputs if v is not None]
    return _total([*own, *(footprint(b) for b in block.bindings)])


def _total(parts: list[int | None]) -> int | None:
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None
