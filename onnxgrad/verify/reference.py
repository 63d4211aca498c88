"""The float64 oracle: any ONNX model evaluated by numpy with every float32, float16 and bfloat16 value held in float64.

Operators run, in this order, through the model's own functions, our kernels (`kernels/`: what onnx.reference gets
wrong, does slowly, or would round to float32), the classes of onnx.reference, and the function bodies of the ONNX
schemas. Casts between float types do nothing. float8, 4-bit and integer values keep their type.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference.op_run import OpRun, SparseTensor
from onnx.reference.ops import aionnxml, load_op
from onnx.reference.ops._op_list import _build_registered_operators

from onnxgrad.errors import InputError
from onnxgrad.verify.kernels import BY_BODY, CONTRACTIONS, KERNELS, Call, Unsupported
from onnxgrad.verify.run import Feeds, Value

_NARROW = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_Env = dict[str, Any]
_A = onnx.AttributeProto


def reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Value]:
    """Evaluate a model in float64: output name -> array (float64 for every float16, bfloat16, float32 and float64
    output), list or None.

    Raises Unsupported where it cannot, InputError when an input is missing.
    """
    return Reference(model).run(feeds)


def widen(value: Any) -> Any:
    """float32, float16 and bfloat16 arrays as float64; anything else as it is. Elements of sequences too."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype in _NARROW else value
    if isinstance(value, list):
        return [widen(v) for v in value]
    if isinstance(value, np.generic):
        return widen(np.asarray(value))
    return value


@dataclass
class _Step:
    """One node ready to run: `dead` names are dropped after it."""

    call: Call
    run: Callable[..., Any]
    captured: tuple[str, ...]  # names that the node's subgraphs read
    dead: tuple[str, ...] = ()


@dataclass
class _Clock:
    """The time budget of one run, and the perturbation of every sum (0: none)."""

    deadline: float | None = None
    seconds: float = 0.0
    jitter: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def check(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Unsupported(f"over its budget of {self.seconds:.3g} s")

    def perturb(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value * (1.0 + self.jitter * self.rng.uniform(-1.0, 1.0, value.shape))
        return value


class _Graph:
    """A graph, subgraph or function body, compiled to steps."""

    def __init__(
        self,
        owner: Reference,
        nodes: Iterable[onnx.NodeProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
        initial: _Env,
        opsets: Mapping[str, int],
    ) -> None:
        self.owner = owner
        self.opsets = opsets
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.initial = initial
        self.steps = [self._step(node) for node in nodes]
        known = {*self.inputs, *initial, ""}
        needed: dict[str, None] = {}
        for step in self.steps:
            needed.update(dict.fromkeys(n for n in (*step.call.inputs, *step.captured) if n not in known))
            known.update(step.call.outputs)
        needed.update(dict.fromkeys(n for n in self.outputs if n not in known))
        self.captured = tuple(needed)
        self._mark_dead()

    def _mark_dead(self) -> None:
        """Free every value after its last use: a reference in float64 needs twice the memory as it is."""
        live = {*self.outputs, ""}
        for step in reversed(self.steps):
            used = {*step.call.inputs, *step.captured, *step.call.outputs}
            step.dead = tuple(used - live)
            live |= used

    def _step(self, node: onnx.NodeProto) -> _Step:
        subgraphs = [
            self._subgraph(graph) for a in node.attribute for graph in ((a.g,) if a.type == _A.GRAPH else a.graphs)
        ]
        captured = tuple(dict.fromkeys(name for graph in subgraphs for name in graph.captured))
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.opsets.get(domain, self.opsets.get(node.domain, 1))
        bodies = iter(subgraphs)
        attributes = {a.name: self._attribute(a, bodies) for a in node.attribute}
        self.owner.fill_defaults(domain, node.op_type, version, attributes)
        call = Call(node.op_type, domain, version, attributes, tuple(node.input), tuple(node.output))
        return _Step(call, self.owner.implementation(node, call, self.opsets), captured)

    def _attribute(self, attribute: onnx.AttributeProto, bodies: Iterable[_Graph]) -> Any:
        if attribute.type == _A.GRAPH:
            return next(iter(bodies))
        if attribute.type == _A.GRAPHS:
            return [next(iter(bodies)) for _ in attribute.graphs]
        return attribute_value(attribute)

    def _subgraph(self, graph: onnx.GraphProto) -> _Graph:
        return self.owner.graph(graph, self.opsets)

    def run(self, arguments: Sequence[Any], outer: Mapping[str, Any], clock: _Clock) -> list[Any]:
        """Evaluate with positional arguments (missing ones are absent) and the values of the enclosing scope."""
        env: _Env = {"": None, **self.initial}
        for name in self.captured:
            if name not in outer:
                raise Unsupported(f"the value {name!r} is not defined where it is used")
            env[name] = outer[name]
        env.update(dict.fromkeys(self.inputs))
        env.update(zip(self.inputs, arguments, strict=False))
        for step in self.steps:
            clock.check()
            results = self._apply(step, env, clock)
            for name, value in zip(step.call.outputs, results, strict=False):
                env[name] = value
            for name in step.dead:
                env.pop(name, None)
        return [env[name] for name in self.outputs]

    def _apply(self, step: _Step, env: _Env, clock: _Clock) -> Iterable[Any]:
        call = step.call
        values = [env[name] for name in call.inputs]
        bound = call
        if any(isinstance(v, _Graph) for v in call.attributes.values()):
            bodies = {k: _body(v, env, clock) if isinstance(v, _Graph) else v for k, v in call.attributes.items()}
            bound = Call(call.op_type, call.domain, call.version, bodies, call.inputs, call.outputs)
        try:
            found = step.run(bound, *values) if not isinstance(step.run, _Function) else step.run.run(values, clock)
        except Unsupported:
            raise
        except MemoryError as error:
            raise Unsupported(f"{call.op_type} -> {call.outputs[0]!r}: out of memory") from error
        except (
            Exception
        ) as error:  # a kernel is numpy on foreign shapes: whatever it raises, it could not compute this node
            words = " ".join(str(error).split())[:300]
            raise Unsupported(f"{call.op_type} -> {call.outputs[0]!r}: {type(error).__name__}: {words}") from error
        results = (
            found
            if (isinstance(found, (tuple, list))
            and (call.domain, call.op_type) not in _LIST_RESULT)
            or isinstance(found, tuple)
            else (found,)
        )
        results = [widen(value) for value in results]
        if clock.jitter and call.op_type in CONTRACTIONS:
            results = [clock.perturb(value) for value in results]
        return results


# operators whose single result is a Python list, that is, a sequence
_LIST_RESULT = {
    ("", name) for name in ("SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceEmpty", "SplitToSequence", "Identity", "Optional",
                            "OptionalGetElement")
}  # fmt: skip


def _body(graph: _Graph, env: _Env, clock: _Clock) -> Callable[..., list[Any]]:
    return lambda *arguments: graph.run(arguments, env, clock)


class _Function:
    """A call of a function: its body with this call's attributes bound, compiled when it first runs (bodies may be
    many).
    """

    def __init__(
        self,
        owner: Reference,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        defaults: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> None:
        self.owner = owner
        self.function = function
        self.node = node
        self.opsets = {**opsets, **{i.domain: i.version for i in function.opset_import}}
        self.defaults = dict(defaults or {})
        self._graph: _Graph | None = None

    def run(self, arguments: Sequence[Any], clock: _Clock) -> list[Any]:
        if self._graph is None:
            bound = (
                self.defaults
                | {a.name: a for a in self.function.attribute_proto}
                | {a.name: a for a in self.node.attribute}
            )
            nodes = [_bind(node, bound) for node in self.function.node]
            self._graph = _Graph(self.owner, nodes, self.function.input, self.function.output, {}, self.opsets)
        return self._graph.run(arguments, {}, clock)


def _bind(node: onnx.NodeProto, bound: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a function body with references to the function's attributes replaced by their values; unset ones go.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in bound:
                value = copy.attribute.add()
                value.CopyFrom(bound[attribute.ref_attr_name])
                value.name = attribute.name
            continue
        copied = copy.attribute.add()
        copied.CopyFrom(attribute)
        for graph in (copied.g,) if attribute.type == _A.GRAPH else copied.graphs:
            nodes = [_bind(inner, bound) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return copy


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """An attribute as a Python value: tensors as (widened) arrays, strings decoded."""
    if attribute.type == _A.TENSOR:
        return widen(numpy_helper.to_array(attribute.t))
    if attribute.type == _A.SPARSE_TENSOR:
        return _dense(attribute.sparse_tensor)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == _A.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == _A.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if attribute.type in (_A.INTS, _A.FLOATS) else value


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        full.reshape(-1)[indices] = values
    else:
        full[tuple(indices.T)] = values
    return np.asarray(widen(full))


class Reference:
    """A model compiled for evaluation in float64; `run` it on several feeds.

    `jitter` multiplies every sum (MatMul, Conv, Reduce*, normalisations) by 1 + jitter * U(-1, 1): how much reordering
    could change the result. Raises Unsupported when an operator of the main graph is not known.
    """

    def __init__(self, model: onnx.ModelProto, *, jitter: float = 0.0) -> None:
        self.jitter = jitter
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._defaults: dict[tuple[str, str, int], dict[str, onnx.AttributeProto]] = {}
        opsets = {i.domain: i.version for i in model.opset_import}
        if "ai.onnx" in opsets:
            opsets.setdefault("", opsets["ai.onnx"])
        self.model_graph = model.graph
        self.compiled = self.graph(model.graph, opsets)

    def run(self, feeds: Feeds, *, seconds: float | None = None) -> dict[str, Value]:
        """Output name -> value. Raises InputError for a missing input, Unsupported for a failing kernel or after
        `seconds`.
        """
        graph = self.compiled
        declared = {value.name: value.type for value in self.model_graph.input}
        missing = [
            n
            for n in graph.inputs
            if n not in feeds and n not in graph.initial and declared[n].WhichOneof("value") != "optional_type"
        ]
        if missing:
            raise InputError(f"input {missing[0]!r} got no value; give one with --input {missing[0]}=FILE")
        arguments = [widen(feeds[n]) if n in feeds else graph.initial.get(n) for n in graph.inputs]
        clock = _Clock(None if seconds is None else time.monotonic() + seconds, seconds or 0.0, self.jitter)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = graph.run(arguments, {}, clock)
        return dict(zip(graph.outputs, found, strict=True))

    def graph(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> _Graph:
        initial: _Env = {t.name: widen(numpy_helper.to_array(t)) for t in graph.initializer}
        initial |= {t.values.name: _dense(t) for t in graph.sparse_initializer}
        return _Graph(self, graph.node, [v.name for v in graph.input], [v.name for v in graph.output], initial, opsets)

    def fill_defaults(self, domain: str, op_type: str, version: int, attributes: dict[str, Any]) -> None:
        """Add the schema's default values."""
        key = (domain, op_type, version)
        if key not in self._defaults:
            try:
                schema = onnx.defs.get_schema(op_type, version, domain)
            except onnx.defs.SchemaError:
                self._defaults[key] = {}
            else:
                self._defaults[key] = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
        for name, default in self._defaults[key].items():
            if name not in attributes:
                attributes[name] = attribute_value(default)

    def implementation(
        self, node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]
    ) -> Callable[..., Any] | _Function:
        """What runs a node; raises Unsupported for an operator that nothing implements."""
        own = self.functions.get((node.domain, node.op_type, node.overload))
        if own is not None:
            return _Function(self, own, node, opsets)
        known = KERNELS.get((call.domain, call.op_type))
        if known is not None:
            return known
        if call.domain == "" and call.op_type in _registered() and call.op_type not in BY_BODY:
            return _Borrowed(load_op("", call.op_type, call.version), node, opsets)
        if call.domain == "ai.onnx.ml":
            return _Borrowed(aionnxml.load_op(call.domain, call.op_type, call.version), node, opsets)
        return self._from_schema(node, call, opsets)

    def _from_schema(
        self, node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]
    ) -> Callable[..., Any] | _Function:
        try:
            schema = onnx.defs.get_schema(call.op_type, call.version, call.domain)
        except onnx.defs.SchemaError:
            raise Unsupported(f"the operator {call.domain or 'ai.onnx'}::{call.op_type} is not known") from None
        if schema.has_function:
            return _Function(
                self, schema.function_body, node, opsets, self._defaults[call.domain, call.op_type, call.version]
            )
        if schema.has_context_dependent_function:
            return _Expanded(self, schema, node, opsets)
        raise Unsupported(f"the operator {call.domain or 'ai.onnx'}::{call.op_type} has no reference implementation")


class _Expanded:
    """An operator whose function body depends on its operands' types: built when they are known."""

    def __init__(
        self, owner: Reference, schema: onnx.defs.OpSchema, node: onnx.NodeProto, opsets: Mapping[str, int]
    ) -> None:
        self.owner, self.schema, self.node, self.opsets = owner, schema, node, opsets

    def __call__(self, call: Call, *values: Any) -> tuple[Any, ...]:
        types = [_type_of(value).SerializeToString() for value in values]
        function = onnx.FunctionProto()
        function.ParseFromString(self.schema.get_context_dependent_function(self.node.SerializeToString(), types))
        return tuple(_Function(self.owner, function, self.node, self.opsets).run(values, _Clock()))


def _type_of(value: Any) -> onnx.TypeProto:
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


class _Borrowed:
    """A class of onnx.reference as a kernel."""

    def __init__(self, implementation: Any, node: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        parameters = {
            "log": _silent,
            "opsets": dict(opsets),
            "verbose": 0,
            "new_ops": {},
            "existing_functions": {},
            "evaluator_cls": None,
        }
        if any(a.name == "softmax_precision" for a in node.attribute):  # Attention: everything here is float64
            node = _without(node, "softmax_precision")
        self.instance: OpRun = implementation(node, parameters)

    def __call__(self, call: Call, *values: Any) -> tuple[Any, ...]:
        found = self.instance.run(*values)
        return tuple(value.todense() if isinstance(value, SparseTensor) else value for value in found)


def _without(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if a.name != name)
    return copy


def _silent(*_: object) -> None:
    """onnx.reference wants somewhere to log to."""


def _registered() -> Mapping[str, Any]:
    """The operators that onnx.reference implements by a class."""
    global _known_classes
    if _known_classes is None:
        _known_classes = _build_registered_operators()
    return _known_classes


_known_classes: Mapping[str, Any] | None = None
