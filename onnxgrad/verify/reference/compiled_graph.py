"""A graph compiled to steps that run in order, each with its operands and the values that can be
freed after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx

from onnxgrad.errors import NodeFailed
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import scheduled
from onnxgrad.ir.storage.lazy_arrays import LazyArray, drawn, elementwise
from onnxgrad.verify.coverage.targets import Targets, Watch
from onnxgrad.verify.reference.kernels import BOUNDED, CONTRACTIONS, Call, Unsupported
from onnxgrad.verify.reference.kernels.registry import Body
from onnxgrad.verify.reference.moved_constants import MovedConstants
from onnxgrad.verify.values import attribute_value, widen
from onnxgrad.wording import one_line

Env: TypeAlias = dict[str, Any]
_A = onnx.AttributeProto


@dataclass
class Clock:
    """The time budget of one run, and the perturbation (0: none) of the results of the operators in
    `jittered`.
    """

    deadline: float | None = None
    seconds: float = 0.0
    jitter: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    jittered: Collection[str] = CONTRACTIONS
    counting: bool = False  # whether the run counts its coverage
    steps: bool = True  # whether operators that quantise round
    constants: MovedConstants | None = None  # moves constants as another rounding might

    @property
    def everywhere(self) -> bool:
        """True if every result that rounds is jittered, and the terms of sums as well, because
        terms that cancel were rounded too.
        """
        return self.jittered is not CONTRACTIONS

    def check(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Unsupported(f"over its budget of {self.seconds:.3g} s")

    def perturb(self, value: Any, op: str = "") -> Any:
        """Returns the result of `op`, perturbed as rounding might change it, or any other value
        unchanged.
        """
        if isinstance(value, LazyArray) and value.transposed:  # drawn by its own rows
            value = value.wide()
        lazy = isinstance(value, LazyArray)
        if not lazy and (not isinstance(value, np.ndarray) or value.dtype != np.float64):
            return value
        units = self.jittered.get(op, 1.0) if isinstance(self.jittered, Mapping) else 1.0
        moved = value * (1.0 + units * self.jitter * self._uniform(value))
        if op in BOUNDED and self.everywhere:
            moved = moved + self.jitter * self._uniform(value)
        return moved if lazy else np.asarray(moved)

    def _uniform(self, like: Any) -> Any:
        if isinstance(like, LazyArray):
            return drawn(self.rng, "uniform", -1.0, 1.0, like=like)
        return self.rng.uniform(-1.0, 1.0, like.shape)


Run: TypeAlias = Callable[[Call, Sequence[Any], Clock], "tuple[Any, ...]"]


class Compiler(Protocol):
    """The model around a graph: its functions, its opsets' schemas and its counters."""

    targets: Targets

    def graph(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> Graph: ...

    def defaults(
        self, domain: str, op_type: str, version: int
    ) -> dict[str, onnx.AttributeProto]: ...

    def implementation(
        self, node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]
    ) -> Run: ...


@dataclass
class Step:
    """One node, ready to run. `captured`: the names that its subgraphs read. `dead`: the names that
    are dropped after it. `watch`: its coverage counters. `turns`: how often its subgraphs ran.
    `bodies`: whether it has any.
    """

    call: Call
    run: Run
    captured: tuple[str, ...]
    watch: Watch | None = None
    dead: tuple[str, ...] = ()
    turns: int = 0
    bodies: bool = False

    @cached_property
    def reads(self) -> set[str]:
        """Returns the names of the values that the node and its subgraphs need."""
        return {*self.call.inputs, *self.captured}


class Kept:
    """The values of a run by name, read-only. All are dropped if they exceed `most` bytes."""

    def __init__(self, most: int) -> None:
        self.values: dict[str, Any] = {}
        self._left = most

    def add(self, name: str, value: Any) -> None:
        """Keeps a value if there is room."""
        self._left -= sum(int(v.nbytes) for v in _arrays(value))
        if self._left < 0:
            self.values.clear()
            return
        for array in _arrays(value):
            array.flags.writeable = False
        self.values[name] = value


def _arrays(value: Any) -> list[Any]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, np.ndarray)]


class Graph:
    """A graph, subgraph or function body, compiled to steps. `unturned`: what onnxruntime returns
    of each output of a loop body that never ran.
    """

    def __init__(
        self,
        owner: Compiler,
        nodes: Iterable[onnx.NodeProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
        initial: Env,
        opsets: Mapping[str, int],
        unturned: Sequence[Any] = (),
    ) -> None:
        self.owner = owner
        self.unturned = unturned
        self.opsets = opsets
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.initial = initial
        self.steps = [self._step(node) for node in scheduled(list(nodes))]
        known = {*self.inputs, *initial, ""}
        needed: dict[str, None] = {}
        for step in self.steps:
            needed.update(
                dict.fromkeys(n for n in (*step.call.inputs, *step.captured) if n not in known)
            )
            known.update(step.call.outputs)
        needed.update(dict.fromkeys(n for n in self.outputs if n not in known))
        self.captured = tuple(needed)
        self._mark_dead()

    def _mark_dead(self) -> None:
        """Marks every value to be freed after its last use, because float64 needs twice the model's
        memory.
        """
        live = {*self.outputs, ""}
        for step in reversed(self.steps):
            used = {*step.call.inputs, *step.captured, *step.call.outputs}
            step.dead = tuple(used - live)
            live |= used

    def split(self, moved: Collection[str], outputs: Collection[str]) -> tuple[Graph, Graph]:
        """Returns the steps that lead to `outputs` as two graphs. The first depends on no input of
        `moved`, and returns the additional inputs of the second.
        """
        needed: set[str] = set(outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.call.outputs):
                needed |= step.reads
                steps.append(step)
        steps.reverse()
        behind = set(moved)
        for step in steps:
            if not behind.isdisjoint(step.reads):
                behind.update(filter(None, step.call.outputs))
        late = [step for step in steps if not behind.isdisjoint(step.reads)]
        early = [step for step in steps if behind.isdisjoint(step.reads)]
        read = set(outputs).union(*(step.reads for step in late))
        kept = [n for step in early for n in step.call.outputs if n in read and n]
        return (
            self._part(early, self.inputs, kept),
            self._part(late, (*self.inputs, *kept), tuple(outputs)),
        )

    def returning(self, outputs: Sequence[str]) -> Graph:
        """Returns the same steps as a graph with other outputs."""
        return self._part(self.steps, self.inputs, outputs)

    def _part(self, steps: Iterable[Step], inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        part = copy(self)
        part.steps = [replace(step) for step in steps]
        part.inputs, part.outputs = tuple(inputs), tuple(outputs)
        part._mark_dead()  # a copy of ourselves
        return part

    def _step(self, node: onnx.NodeProto) -> Step:
        domain = domains.canonical(node.domain)
        version = self.opsets.get(domain, self.opsets.get(node.domain, 1))
        subgraphs: list[Graph] = []
        given = self.owner.defaults(domain, node.op_type, version) | {
            a.name: a for a in node.attribute
        }
        attributes = {name: self._attribute(a, subgraphs) for name, a in given.items()}
        call = Call(
            node.op_type, domain, version, attributes, tuple(node.input), tuple(node.output)
        )
        captured = tuple(dict.fromkeys(name for graph in subgraphs for name in graph.captured))
        return Step(
            call,
            self.owner.implementation(node, call, self.opsets),
            captured,
            watch=self.owner.targets.of.get(id(node)),
            bodies=bool(subgraphs),
        )

    def _attribute(self, attribute: onnx.AttributeProto, subgraphs: list[Graph]) -> Any:
        if attribute.type == _A.GRAPH:
            subgraphs.append(self.owner.graph(attribute.g, self.opsets))
            return subgraphs[-1]
        return attribute_value(attribute)

    def constants(self, clock: Clock) -> Env:
        """Returns the initializers of the graph, moved if the run requires it."""
        moved = clock.constants
        return self.initial if moved is None else moved.each(self.initial, self)

    def run(
        self,
        arguments: Sequence[Any],
        outer: Mapping[str, Any],
        clock: Clock,
        kept: Kept | None = None,
    ) -> tuple[Any, ...]:
        """Runs the graph on positional arguments (missing ones are absent) and the values of the
        enclosing scope. `kept` receives all computed values.
        """
        return tuple(map(_read, self.values(arguments, outer, clock, kept)))

    def values(
        self,
        arguments: Sequence[Any],
        outer: Mapping[str, Any],
        clock: Clock,
        kept: Kept | None = None,
    ) -> tuple[Any, ...]:
        """Returns the outputs as `run`, but a weight that is one of them stays in its file."""
        env: Env = {"": None, **self.constants(clock)}
        for name in self.captured:
            if name not in outer:
                raise NodeFailed(f"the value {name!r} is used but not defined")
            env[name] = outer[name]
        env.update(dict.fromkeys(self.inputs))
        env.update(zip(self.inputs, arguments))
        for step in self.steps:
            clock.check()
            for name, value in zip(step.call.outputs, _apply(step, env, clock)):
                if clock.constants is not None:
                    value = clock.constants.result(name, value)
                env[name] = value
                if kept is not None:
                    kept.add(name, value)
            env[""] = None  # an omitted operand must not read an omitted result
            for name in step.dead:
                env.pop(name, None)
        return tuple(env[name] for name in self.outputs)


def _apply(step: Step, env: Env, clock: Clock) -> list[Any]:
    """Runs one node on the values of its scope."""
    call = _prepared(step, env, clock)
    operands = [env[name] for name in call.inputs]
    found = _unread(call, operands, clock)
    if found is None and not _by_blocks(step, operands, clock):
        operands = [_read(value) for value in operands]
    if clock.jitter and clock.everywhere and call.op_type in CONTRACTIONS:
        operands = [clock.perturb(value) for value in operands]
    try:
        if found is None:
            found = step.run(call, operands, clock)
        if clock.counting and step.watch is not None and step.watch.left:
            step.watch.see(call.attributes, operands, found, step.turns)
    except Unsupported:
        raise
    except MemoryError as error:
        raise Unsupported(f"{_where(call)}: out of memory") from error
    # numpy may raise anything on invalid shapes: the node has no result then
    except Exception as error:
        # onnx.reference raises this for a form that it lacks
        kind = Unsupported if isinstance(error, NotImplementedError) else NodeFailed
        reason = f"{type(error).__name__}: {one_line(error, 300)}"
        raise kind(f"{_where(call)}: {reason}") from error
    if not clock.jitter or call.op_type not in clock.jittered:
        return [widen(value) for value in found]
    return [clock.perturb(widen(value), call.op_type) for value in found]


def _where(call: Call) -> str:
    return f"{call.op_type} -> {call.outputs[0] if call.outputs else ''!r}"


def _read(value: Any) -> Any:
    """Returns a value with its elements: a weight that stays in its file is read."""
    return value.wide() if isinstance(value, LazyArray) else value


def _unread(call: Call, operands: Sequence[Any], clock: Clock) -> tuple[Any, ...] | None:
    """Returns the result of a node that does not need a weight in a file as a whole: rows, its
    transpose, or a sum with an array or with 0, as differences have it where nothing moves. None
    for any other node.
    """
    if not operands or not isinstance(operands[0], LazyArray) or call.domain:
        return None
    weight, others = operands[0], operands[1:]
    if call.op_type == "Identity":
        return (weight,)
    if call.op_type == "Transpose" and len(weight.shape) == 2:
        return (weight if call["perm"] == [0, 1] else weight.T,)
    if call.op_type == "Add":
        added = others[0]
        array = isinstance(added, np.ndarray) and added.dtype == np.float64
        if (array or isinstance(added, LazyArray)) and added.shape == weight.shape != ():
            return (elementwise(np.add, weight, added),)
        return (weight,) if array and added.shape == () and not added.any() else None
    if call.op_type == "Gather" and not call["axis"] and isinstance(others[0], np.ndarray):
        at = np.where(others[0] < 0, others[0] + weight.shape[0], others[0])
        if not at.size or (at.min() >= 0 and at.max() < weight.shape[0]):
            return (weight.rows(at),)
    return None


def _by_blocks(step: Step, operands: Sequence[Any], clock: Clock) -> bool:
    """Whether a node multiplies by a weight in a file, which its kernel reads by blocks."""
    call = step.call
    return (
        call.op_type in ("MatMul", "Gemm", "Conv")
        and not call.domain
        and isinstance(operands[0], np.ndarray)
        and operands[0].ndim > 0
        and isinstance(operands[1], LazyArray)
        and (len(operands[1].shape) > 2 if call.op_type == "Conv" else len(operands[1].shape) == 2)
        and not any(isinstance(value, LazyArray) for value in operands[2:])
        and not (clock.counting and step.watch is not None and step.watch.left)
    )


def _prepared(step: Step, env: Env, clock: Clock) -> Call:
    """Returns the call as this run requires it, with its subgraphs as functions `body(*values)`
    that read the values of the scope.
    """
    call, step.turns = step.call, 0
    if clock.jitter and clock.everywhere:
        call = replace(call, rounded=clock.perturb)
    if not clock.steps:
        call = replace(call, steps=False)
    if clock.constants is not None:
        call = replace(call, attributes=clock.constants.each(call.attributes, step))
    if not step.bodies:
        return call

    def close(graph: Graph) -> Body:
        def run(*arguments: Any) -> tuple[Any, ...]:
            step.turns += 1
            return graph.run(arguments, env, clock)

        return Body(run, graph.unturned)

    attributes = {k: close(v) if isinstance(v, Graph) else v for k, v in call.attributes.items()}
    return replace(call, attributes=attributes)
