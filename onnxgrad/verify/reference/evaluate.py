"""The float64 reference: numpy evaluates any ONNX model with all float32, float16 and bfloat16
values in float64.

The first available implementation of a node runs: the model's own functions; our kernels
(`kernels/`, for operators that onnx.reference gets wrong, computes slowly or would round to
float32); the classes of onnx.reference; the function body in the ONNX schema. Casts between float
types do nothing. float8, 4-bit and integer values keep their type.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import elements
from onnxgrad.ir.storage.stored_arrays import is_storable, stored
from onnxgrad.ir.types import Array
from onnxgrad.verify.coverage.counters import Goal, Item, Reach, joined
from onnxgrad.verify.coverage.targets import Targets
from onnxgrad.verify.reference.compiled_graph import Clock, Env, Graph, Kept, Run
from onnxgrad.verify.reference.kernels import CONTRACTIONS, KERNELS, UNTIL, Call, Unsupported
from onnxgrad.verify.reference.kernels.control_flow import dtype_of
from onnxgrad.verify.reference.moved_constants import MovedConstants, Roundings
from onnxgrad.verify.reference.onnx_reference_kernels import borrow
from onnxgrad.verify.reference.user_operators import OWN, call_own
from onnxgrad.verify.values import Feeds, Value, bind, dense, type_of, widen

# bytes of the values that runs which differ in one input share
_MOST_KEPT = 2**28

__all__ = ["Reference", "Unsupported", "reference"]


def reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Value]:
    """Evaluates a model in float64. Returns the outputs by name: an array (float64 for every float
    output except float8), a list or None.

    Raises Unsupported if the model cannot be evaluated, and InputError if an input is missing.
    """
    return Reference(model).run(feeds)


def _run_kernel(
    kernel: Callable[..., Any], call: Call, values: Sequence[Any], clock: Clock
) -> tuple[Any, ...]:
    found = kernel(call, *values)
    return found if isinstance(found, tuple) else (found,)


def _run_own(
    function: Callable[..., Any], call: Call, values: Sequence[Any], clock: Clock
) -> tuple[Any, ...]:
    """Runs a user's operator."""
    outputs = max((i for i, name in enumerate(call.outputs, 1) if name), default=0)
    return tuple(call_own(function, outputs, list(values), call.attributes))


def _unturned(kind: onnx.TypeProto.Tensor) -> Array:
    """Returns what onnxruntime returns of an output of a loop body without turns: no rows of its
    declared sizes, of which those that are not fixed are 0.
    """
    code = kind.elem_type or onnx.TensorProto.FLOAT
    return np.zeros((0, *(max(d.dim_value, 0) for d in kind.shape.dim)), dtype_of(code))


class _Function:
    """A call of a function: its body with this call's attributes bound. The body is compiled at its
    first run.
    """

    def __init__(
        self,
        owner: Reference,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        defaults: Mapping[str, onnx.AttributeProto],
    ) -> None:
        self.owner = owner
        self.function = function
        self.node = node
        self.opsets = {**opsets, **domains.versions(function.opset_import)}
        self.defaults = defaults
        self.graph: Graph | None = None

    def __call__(self, call: Call, values: Sequence[Any], clock: Clock) -> tuple[Any, ...]:
        if self.graph is None:
            function = self.function
            bound = {
                **self.defaults,
                **{a.name: a for a in (*function.attribute_proto, *self.node.attribute)},
            }
            nodes = [bind(node, bound) for node in function.node]
            self.owner.targets.follow(function.node, nodes)
            self.graph = Graph(self.owner, nodes, function.input, function.output, {}, self.opsets)
        return self.graph.run(values, {}, clock)


class _Partial:
    """Runs a graph several times with changes in one input. Values that do not depend on that input
    are kept, unless `known` has them.
    """

    def __init__(
        self,
        key: tuple[tuple[object, str], tuple[str, ...]],
        graph: Graph,
        known: Mapping[str, Any],
    ) -> None:
        self.key = key
        (_, name), outputs = key
        self.first, self.second = graph.split([name], outputs)
        wanted = self.first.outputs
        self.kept = tuple(known[n] for n in wanted) if all(n in known for n in wanted) else None

    def run(self, arguments: Sequence[Any], clock: Clock) -> tuple[Any, ...]:
        if self.kept is None:
            kept = Kept(sys.maxsize)
            self.kept = self.first.values(arguments, {}, clock)
            for name, value in zip(self.first.outputs, self.kept):
                kept.add(name, value)
        return self.second.run([*arguments, *self.kept], {}, clock)


class Reference:
    """A model compiled for evaluation in float64. `run` evaluates it on feeds. External weights
    stay in their files in `folder`, and each node that needs one converts it.

    Raises Unsupported if an operator is unknown.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path | None = None) -> None:
        self._folder = folder
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._defaults: dict[tuple[str, str, int], dict[str, onnx.AttributeProto]] = {}
        self.declared = {value.name: value.type for value in model.graph.input}
        self.targets = Targets(model)
        self._counted: object = None
        self._partial: _Partial | None = None
        # a mark; the values, and the inputs, of the run in which no input was moved
        self._base: tuple[object, Mapping[str, Any], Mapping[str, Any]] = (None, {}, {})
        self.compiled = self.graph(model.graph, domains.versions(model.opset_import))
        self._latest = self.compiled  # with the outputs of the latest run

    def run(
        self,
        feeds: Feeds,
        *,
        seconds: float | None = None,
        jitter: float = 0.0,
        jittered: Collection[str] = CONTRACTIONS,
        seed: int = 0,
        count: object = None,
        outputs: Sequence[str] | None = None,
        moved: tuple[object, str] | None = None,
        steps: bool = True,
        rounded: Roundings | None = None,
    ) -> dict[str, Value]:
        """Returns the outputs by name. `outputs`: the names of the wanted outputs. `steps` False:
        operators that quantise clip and do not round. `rounded`: these constants move by half a
        unit in the last place, chosen by `seed`.

        `moved`: a mark, and the only input in which this run differs from all runs with the same
        mark. Values that do not depend on that input are computed once. An empty name stands for
        the run in which no input is moved; its values are kept if they are not too large. If its
        inputs are (`remembers`), `feeds` may have the moved input alone.

        `count`: adds the coverage of this run to that of the runs with the same `count`
        (`covered`).

        `jitter` multiplies every result of the operators in `jittered` by 1 + jitter * U(-1, 1).
        For operators that sum (MatMul, Conv, Reduce*, normalisations) this shows how much another
        order of summation could change the result. For `kernels.ROUNDED` it shows the effect of
        rounding (Parker, Monte Carlo arithmetic, 1997); then results of `kernels.BOUNDED` also move
        by jitter * U(-1, 1). Raises InputError for a missing input, and Unsupported for a failure
        or after `seconds`.
        """
        graph = self.compiled
        same = self._base[2] if moved is not None and moved[1] and self.remembers(moved[0]) else {}
        if count is not None and count != self._counted:
            if self._counted is not None:
                self.targets.forget()
            self._counted = count
        for name in graph.inputs:
            optional = self.declared[name].WhichOneof("value") == "optional_type"
            given = name in feeds or name in same or name in graph.initial
            if not given and not optional:
                raise InputError(f"input {name!r} has no value")
        deadline = None if seconds is None else time.monotonic() + seconds
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clock = Clock(
                deadline,
                seconds or 0.0,
                jitter,
                np.random.default_rng(seed),
                jittered,
                count is not None,
                steps,
                None if rounded is None else MovedConstants(rounded, seed),
            )
            defaults = graph.constants(clock)
            arguments = [
                widen(feeds[n]) if n in feeds else same.get(n, defaults.get(n))
                for n in graph.inputs
            ]
            wanted = graph.outputs if outputs is None else tuple(outputs)
            if moved is not None and moved[1]:
                return dict(zip(wanted, self._behind(moved, wanted).run(arguments, clock)))
            kept = None if moved is None else Kept(_MOST_KEPT)
            found = dict(zip(wanted, self._returning(wanted).run(arguments, {}, clock, kept)))
            if moved is not None and kept is not None:
                inputs = Kept(_MOST_KEPT)
                for name, value in zip(graph.inputs, arguments):
                    inputs.add(name, value)
                self._base = moved[0], kept.values, inputs.values
        return found

    def _returning(self, wanted: tuple[str, ...]) -> Graph:
        """Returns the graph with these outputs; it frees the others when they were used."""
        if self._latest.outputs != wanted:
            self._latest = self.compiled.returning(wanted)
        return self._latest

    def remembers(self, mark: object) -> bool:
        """Returns whether the inputs of the run with this mark that moved none are kept."""
        return self._base[0] == mark and len(self._base[2]) == len(self.compiled.inputs)

    def _behind(self, moved: tuple[object, str], wanted: tuple[str, ...]) -> _Partial:
        if self._partial is None or self._partial.key != (moved, wanted):
            self._partial = None  # free the old values first: they are large
            mark, known, _ = self._base
            self._partial = _Partial(
                (moved, wanted), self.compiled, known if mark == moved[0] else {}
            )
        return self._partial

    def covered(self, count: object, then: str = "") -> list[Item]:
        """Returns the items that the runs with this `count` reached, after `mark` if `then` is
        set.
        """
        if count != self._counted:
            return []
        if then:
            self.mark(count, then)
        return joined(item for c in self.targets.counters() for item in c.items())

    def mark(self, count: object, then: str) -> None:
        """Saves the counts of the runs with this `count` if `then` is "mark"; returns to the saved
        ones if it is "back"; forgets these if it is "keep".
        """
        if count == self._counted:
            getattr(self.targets, then)()

    def goals(self, count: object) -> list[Goal]:
        """Returns values that would reach more than the runs with this `count`."""
        counters = self.targets.counters() if count == self._counted else ()
        return [goal for counter in counters for goal in counter.goals()]

    def reached(self, count: object) -> list[Reach]:
        """Returns the parts of constants that the runs with this `count` read."""
        counters = self.targets.counters() if count == self._counted else ()
        return [reach for counter in counters if (reach := counter.reach()) is not None]

    def graph(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> Graph:
        """Compiles a graph or subgraph."""
        initial: Env = {t.name: self._constant(t) for t in graph.initializer}
        initial |= {t.values.name: dense(t) for t in graph.sparse_initializer}
        inputs, outputs = [v.name for v in graph.input], [v.name for v in graph.output]
        unturned = [_unturned(v.type.tensor_type) for v in graph.output]
        return Graph(self, graph.node, inputs, outputs, initial, opsets, unturned)

    def _constant(self, tensor: onnx.TensorProto) -> Any:
        if self._folder is not None and is_storable(tensor):
            return stored(tensor, self._folder)
        return widen(elements(tensor))

    def defaults(self, domain: str, op_type: str, version: int) -> dict[str, onnx.AttributeProto]:
        """Returns the default attributes of an operator's schema; none for an unknown operator."""
        key = (domain, op_type, version)
        if key not in self._defaults:
            try:
                schema = onnx.defs.get_schema(op_type, version, domain)
            except onnx.defs.SchemaError:
                self._defaults[key] = {}
            else:
                self._defaults[key] = {
                    n: a.default_value for n, a in schema.attributes.items() if a.default_value.type
                }
        return self._defaults[key]

    def implementation(self, node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]) -> Run:
        """Returns the function that runs a node. Raises Unsupported if the operator has no
        implementation.
        """
        own = self.functions.get((node.domain, node.op_type, node.overload))
        if own is not None:
            return _Function(self, own, node, opsets, {})
        key = (call.domain, call.op_type)
        if key in OWN:
            return functools.partial(_run_own, OWN[key])
        ours = KERNELS.get(key) if call.version <= UNTIL.get(key, call.version) else None
        kernel = ours or borrow(node, call, opsets)
        if kernel is None:
            return self._from_schema(node, call, opsets)
        return functools.partial(_run_kernel, kernel)

    def _from_schema(self, node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]) -> Run:
        try:
            # Typed Any: onnx's stubs lack the schema's function members.
            schema: Any = onnx.defs.get_schema(call.op_type, call.version, call.domain)
        except onnx.defs.SchemaError:
            raise Unsupported(
                f"the operator {call.domain or 'ai.onnx'}::{call.op_type} is not known"
            ) from None
        defaults = self.defaults(call.domain, call.op_type, call.version)
        if schema.has_function:
            return _Function(self, schema.function_body, node, opsets, defaults)
        if not schema.has_context_dependent_function:
            name = f"{call.domain or 'ai.onnx'}::{call.op_type}"
            raise Unsupported(f"the operator {name} has no reference implementation")

        def expand(call: Call, values: Sequence[Any], clock: Clock) -> tuple[Any, ...]:
            """Builds the body when the operands' types are known, because it depends on them."""
            types = [type_of(value).SerializeToString() for value in values]
            body = onnx.FunctionProto()
            body.ParseFromString(
                schema.get_context_dependent_function(node.SerializeToString(), types)
            )
            return _Function(self, body, node, opsets, defaults)(call, values, clock)

        return expand
