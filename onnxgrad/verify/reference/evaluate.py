"""The float64 reference: any ONNX model evaluated by numpy with every float32, float16 and bfloat16
value held in float64.

A node runs through the first of: the model's own functions; our kernels (`kernels/`: operators that
onnx.reference gets wrong, computes slowly or would round to float32); the classes of
onnx.reference; the function body in the ONNX schema. Casts between float types do nothing. float8,
4-bit and integer values keep their type.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import elements
from onnxgrad.verify.coverage.counters import Item, joined
from onnxgrad.verify.coverage.targets import Targets
from onnxgrad.verify.reference.compiled_graph import Clock, Env, Graph, Kept, Run
from onnxgrad.verify.reference.kernels import CONTRACTIONS, KERNELS, UNTIL, Call, Unsupported
from onnxgrad.verify.reference.onnx_reference_kernels import borrow
from onnxgrad.verify.reference.user_operators import OWN, call_own
from onnxgrad.verify.values import Feeds, Value, bind, dense, type_of, widen

# bytes of the values of a run that others, which differ in one input, begin with
_MOST_KEPT = 2**28

__all__ = ["Reference", "Unsupported", "reference"]


def reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Value]:
    """Evaluate a model in float64: output name -> array (float64 for every float output but
    float8), list or None.

    Raises Unsupported where it cannot, InputError when an input is missing.
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
    """Run an operator of the user's own."""
    outputs = max((i for i, name in enumerate(call.outputs, 1) if name), default=0)
    return tuple(call_own(function, outputs, list(values), call.attributes))


class _Function:
    """A call of a function: its body with this call's attributes bound, compiled when it first
    runs.
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
    """Runs of a graph that differ in one input: the values that do not depend on it are kept, if
    `known` does not have them.
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
            self.kept = self.first.run(arguments, {}, clock)
            for name, value in zip(self.first.outputs, self.kept):
                kept.add(name, value)
        return self.second.run([*arguments, *self.kept], {}, clock)


class Reference:
    """A model compiled for evaluation in float64; `run` it on several feeds.

    Raises Unsupported when an operator is not known.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._defaults: dict[tuple[str, str, int], dict[str, onnx.AttributeProto]] = {}
        self.declared = {value.name: value.type for value in model.graph.input}
        self.targets = Targets(model)
        self._counted: object = None
        self._partial: _Partial | None = None
        self._base: tuple[object, Mapping[str, Any]] = (None, {})
        self.compiled = self.graph(model.graph, domains.versions(model.opset_import))

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
    ) -> dict[str, Value]:
        """Output name -> value; `outputs`: those wanted. Without `steps`, operators that quantise
        clip and do not round.

        `moved`: a mark, and the input in which alone this run differs from all those with the same
        mark: what does not depend on it is computed once. With "" for the input, the run in which
        none is moved, whose values are kept if they are not too large.

        `count`: add what this run reaches to what runs with the same `count` reached (`covered`).

        `jitter` multiplies every result of the operators `jittered` by 1 + jitter * U(-1, 1). Of
        those that sum (MatMul, Conv, Reduce*, normalisations) it shows how much another order of
        summation could change the result, of `kernels.ROUNDED` what rounding can do (Parker, Monte
        Carlo arithmetic, 1997); there, what lies between -1 and 1 moves by jitter * U(-1, 1) as
        well. Raises InputError for a missing input, Unsupported for a failure or after `seconds`.
        """
        graph = self.compiled
        if count is not None and count != self._counted:
            self.targets.forget()
            self._counted = count
        for name in graph.inputs:
            optional = self.declared[name].WhichOneof("value") == "optional_type"
            if name not in feeds and name not in graph.initial and not optional:
                raise InputError(f"input {name!r} has no value")
        arguments = [widen(feeds[n]) if n in feeds else graph.initial.get(n) for n in graph.inputs]
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
            )
            wanted = graph.outputs if outputs is None else tuple(outputs)
            if moved is not None and moved[1]:
                return dict(zip(wanted, self._behind(moved, wanted).run(arguments, clock)))
            kept = None if moved is None else Kept(_MOST_KEPT)
            found = dict(zip(graph.outputs, graph.run(arguments, {}, clock, kept)))
            if moved is not None and kept is not None:
                self._base = moved[0], kept.values
        return {name: found[name] for name in wanted}

    def _behind(self, moved: tuple[object, str], wanted: tuple[str, ...]) -> _Partial:
        if self._partial is None or self._partial.key != (moved, wanted):
            self._partial = None  # what it keeps is large
            mark, known = self._base
            self._partial = _Partial(
                (moved, wanted), self.compiled, known if mark == moved[0] else {}
            )
        return self._partial

    def covered(self, count: object, then: str = "") -> list[Item]:
        """Returns the items that the runs with this `count` reached. `then` "mark": remember that;
        "back": return to it first.
        """
        if count != self._counted:
            return []
        if then:
            (self.targets.mark if then == "mark" else self.targets.back)()
        return joined(item for c in self.targets.counters() for item in c.items())

    def graph(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> Graph:
        """Compile a graph or subgraph."""
        initial: Env = {t.name: widen(elements(t)) for t in graph.initializer}
        initial |= {t.values.name: dense(t) for t in graph.sparse_initializer}
        inputs, outputs = [v.name for v in graph.input], [v.name for v in graph.output]
        return Graph(self, graph.node, inputs, outputs, initial, opsets)

    def defaults(self, domain: str, op_type: str, version: int) -> dict[str, onnx.AttributeProto]:
        """The default attributes of an operator's schema; none for an unknown operator."""
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
        """Returns the function that runs a node; raises Unsupported for an operator that nothing
        implements.
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
            """The body depends on the operands' types, so it is built when they are known."""
            types = [type_of(value).SerializeToString() for value in values]
            body = onnx.FunctionProto()
            body.ParseFromString(
                schema.get_context_dependent_function(node.SerializeToString(), types)
            )
            return _Function(self, body, node, opsets, defaults)(call, values, clock)

        return expand
