"""The values of steps for new weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from onnxgrad.errors import InputError
from onnxgrad.ir.derivations import Held, Step, operands_of
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.types import Array
from onnxgrad.jobs.rebasing.by_blocks import Shape, Source, Streamed, joined
from onnxgrad.jobs.rebasing.functions import applied

# the newest IR version that every onnxruntime we support reads
_IR = 10


class Values:
    """The values of steps for the weights that `weight` returns by name. `wanted`: the steps that
    `of` or `blocks` will be called with, once each; a value is dropped after its last use. A large
    weight is read again for each result. Steps of weights with a source are computed by blocks, as
    `by_blocks` says.
    """

    def __init__(
        self, steps: Sequence[Step], wanted: Iterable[Step], weight: Callable[[str], Array],
        sources: Mapping[str, Source] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._weight = weight
        self._values: dict[Step, Any] = {}
        self._large: list[Step] = []
        self._levels: dict[Step, int] = {}
        self._batches: dict[tuple[int, int], list[Step]] = {}
        below = [operands_of(s) for s in steps]
        self._below = dict(zip(steps, below, strict=True))
        self._streamed = Streamed(self._below, sources)
        if sources:
            steps = self._count(steps, wanted)
        else:
            self._uses = Counter(chain(wanted, chain.from_iterable(below)))
        if any(s.kind == "node" for s in steps):
            self._batch(steps)

    def _count(self, steps: Sequence[Step], wanted: Iterable[Step]) -> list[Step]:
        """Counts the uses of steps that are computed as a whole. Returns these steps."""
        self._below |= {s: self._streamed.below(s.operands) for s in self._streamed.reductions}
        self._uses = Counter(o for s in wanted for o in self._streamed.below([s]))
        needed, work = set[Step](), list(self._uses)
        while work:
            s = work.pop()
            if s not in needed:
                needed.add(s)
                self._uses.update(self._below[s])
                work += self._below[s]
        return [s for s in steps if s in needed]

    def _batch(self, steps: Sequence[Step]) -> None:
        """Finds the nodes that onnxruntime computes in one run."""
        for s in steps:
            below = self._below[s]
            level = int(s.kind == "node")
            level = max((self._levels[o] + _above(s, o) for o in below), default=level)
            self._levels[s] = level
            if s.kind == "node":
                self._batches.setdefault((level, s.what.opset), []).append(s)

    def of(self, step: Step) -> Array:
        """Returns the value of a step. Raises InputError if onnxruntime cannot compute it."""
        with np.errstate(all="ignore"):
            return self._of(step)

    def failed(self, facts: Iterable[tuple[Held, Step]]) -> list[Held]:
        """Returns the facts that do not hold, of those with these steps. Raises as `of`."""
        with np.errstate(all="ignore"):  # for all of them: it takes as long as many a step
            return [
                h
                for h, step in facts
                if bool(self._of(step)) is not (h.predicate.same or bool(h.predicate.value))
            ]

    def blocks(self, step: Step) -> tuple[Shape, Iterable[Array]]:
        """Returns the shape of the value of a step, and blocks of it whose elements follow each
        other. Raises as `of`.
        """
        with np.errstate(all="ignore"):
            return self._blocks(step)

    def _of(self, step: Step) -> Array:
        if step in self._streamed:
            return joined(*self._blocks(step))
        found: Array = np.asarray(self._value(step))
        self._done([step])
        return found

    def _blocks(self, step: Step) -> tuple[Shape, Iterable[Array]]:
        if step not in self._streamed:
            found = self._of(step)
            return found.shape, [found]
        below = self._streamed.below([step])
        for s in below:
            self._value(s)
        return self._streamed.shape(step, self._values), self._until_done(step, below)

    def _until_done(self, step: Step, below: Sequence[Step]) -> Iterator[Array]:
        for (block,) in self._streamed.blocks([step], self._values):
            yield block
        self._done(below)

    def _done(self, steps: Iterable[Step]) -> None:
        self._used(steps)
        while self._large:
            self._values.pop(self._large.pop(), None)

    def _used(self, steps: Iterable[Step]) -> None:
        uses, values = self._uses, self._values
        for s in steps:
            uses[s] -= 1
            if uses[s] <= 0:
                values.pop(s, None)

    def _value(self, step: Step) -> Any:
        work, values = [step], self._values
        while work:
            s = work[-1]
            if s in values:
                work.pop()
            elif missing := self._missing(s):
                work += missing
            else:
                self._compute(s)
        return values[step]

    def _missing(self, s: Step) -> list[Step]:
        """The steps that must be computed before this one."""
        values = self._values
        if s.kind != "node":
            return [o for o in self._below[s] if o not in values]
        batch = self._batches[self._levels[s], s.what.opset]
        below = (o for b in batch for o in self._below[b] if o not in batch)
        return [o for o in below if o not in values]

    def _compute(self, s: Step) -> None:
        values, below, kind = self._values, self._below[s], s.kind
        if kind == "weight":
            found = values[s] = self._weight(s.what)
            self._large += [s] if found.nbytes >= LARGE else []
            return
        if kind == "node":
            batch = self._batches[self._levels[s], s.what.opset]
            values |= _run(batch, values)
            self._used(o for b in batch for o in self._below[b])
            return
        reduction = self._streamed.reductions.get(s)
        values[s] = (
            applied(s, values, below) if reduction is None
            else self._streamed.reduced(s, reduction, values)
        )  # fmt: skip
        self._used(below)


def _above(s: Step, operand: Step) -> int:
    """1 if a node reads a value that onnxruntime does not compute in the same run."""
    if s.kind != "node":
        return 0
    return int(operand.kind != "node" or operand.what.opset != s.what.opset)


def _run(nodes: Iterable[Step], values: Mapping[Step, Any]) -> dict[Step, Array]:
    """Computes nodes in one run of onnxruntime. Raises InputError."""
    from onnxgrad.verify.running.child_process import RunFailed  # few records have nodes
    from onnxgrad.verify.running.session import run

    graph, names, wanted = onnx.GraphProto(name="constants"), dict[Any, str](), dict[Step, str]()
    opset = 0
    for k, s in enumerate(nodes):
        node, opset = NodeProto(), s.what.opset
        node.CopyFrom(s.what.proto)
        for i, operand in enumerate(s.operands):
            if operand is None:
                continue
            if isinstance(operand, Step) and operand in wanted:
                node.input[i] = wanted[operand]
                continue
            key = operand if isinstance(operand, Step) else id(operand)
            if key not in names:
                names[key] = f"c{len(names)}"
                array = values[operand] if isinstance(operand, Step) else operand
                graph.initializer.append(tensor_of(np.asarray(array, order="C"), names[key]))
            node.input[i] = names[key]
        node.output[:] = [f"r{k}_{i}" if name else "" for i, name in enumerate(node.output)]
        wanted[s] = node.output[s.what.index]
        graph.node.append(node)
        graph.output.add(name=wanted[s]).type.tensor_type.elem_type = s.what.dtype
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.ModelProto(ir_version=_IR, graph=graph, opset_import=imports)
    try:
        found = run(model, {}, optimize=False)
    except RunFailed as error:
        raise InputError(f"onnxruntime cannot compute a constant: {error}") from None
    return {s: np.asarray(found[name]) for s, name in wanted.items()}
