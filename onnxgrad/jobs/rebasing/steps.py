"""Steps as JSON, and their values for new weights."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.derivations import Held, Node, Predicate, Step, operands_of
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.storage.weights_in_file import LARGE
from onnxgrad.ir.traced_arrays import STATIC
from onnxgrad.ir.types import Array
from onnxgrad.laws.constant_values import reason_of_rounding
from onnxgrad.laws.float16.forms import fits_float16, in_half
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import run

# the newest IR version that every onnxruntime we support reads
_IR = 10
# the functions that `@predicate` and `@recorded` declare
_CALLS = {f.__name__: f for f in (fits_float16, in_half, reason_of_rounding)}


# ---- as JSON -------------------------------------------------------------------------------------


class Encoder:
    """Turns steps into a list in which operands come first; equal steps are one entry. `constants`:
    their operands that hold no step, each once.
    """

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.constants: list[Any] = []
        self._numbers: dict[Step, int] = {}
        self._known: dict[str, int] = {}
        self._places: dict[str, int] = {}

    def number(self, step: Step) -> int:
        """Returns the place of a step in the list. Raises NotProved for an operand that JSON cannot
        hold.
        """
        work = [step]
        while work:
            s = work[-1]
            missing = [o for o in operands_of(s) if o not in self._numbers]
            if s not in self._numbers and missing:
                work += missing
                continue
            if s not in self._numbers:
                entry = [s.kind, self._what(s.what), [self._operand(v) for v in s.operands]]
                entry += [{k: self.value(v) for k, v in s.keywords.items()}] if s.keywords else []
                key = json.dumps(entry)
                if key not in self._known:
                    self._known[key] = len(self.entries)
                    self.entries.append(entry)
                self._numbers[s] = self._known[key]
            work.pop()
        return self._numbers[step]

    def _what(self, what: Any) -> Any:
        """A name as it is, a node as a list, and the place of a constant as a negative number."""
        if what is None or isinstance(what, str):
            return what
        return _node(what) if isinstance(what, Node) else self._constant(what)

    def _operand(self, value: Any) -> Any:
        """The number of a step, the place of a constant as a negative number, or nested steps."""
        if isinstance(value, Step):
            return self._numbers[value]
        nested = operands_of(Step("literal", None, [value]))
        return self.value(value) if nested else self._constant(value)

    def _constant(self, value: Any) -> int:
        entry = self.value(value)
        place = self._places.setdefault(json.dumps(entry), len(self.constants))
        if place == len(self.constants):
            self.constants.append(entry)
        return ~place

    def value(self, value: Any) -> Any:
        """Returns an operand as JSON."""
        if isinstance(value, Step):
            return {"step": self._numbers[value] if value in self._numbers else self.number(value)}
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            scalar = isinstance(value, np.generic)
            return {"array": [_name(array.dtype), list(array.shape), data, scalar]}
        if isinstance(value, (list, tuple)):
            items = [self.value(v) for v in value]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, dict):
            return {"dict": {k: self.value(v) for k, v in value.items()}}
        if isinstance(value, slice):
            return {"slice": [self.value(v) for v in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        scalar_type = isinstance(value, type) and issubclass(value, np.generic)
        if isinstance(value, np.dtype) or scalar_type:
            return {"dtype": _name(np.dtype(value))}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise NotProved(f"not rebasable: a step has an operand of type {type(value).__name__}")


class Decoder:
    """Turns the lists of an Encoder into `steps`, and its operands into values."""

    def __init__(self, entries: Sequence[Any], constants: Sequence[Any]) -> None:
        steps = self.steps = list[Step]()
        known = [self.value(v) for v in constants]
        for kind, what, operands, *keywords in entries:
            if type(what) is not str and what is not None:
                what = _read_node(what) if kind == "node" else known[~what]
            found = [
                self.value(o) if type(o) is not int else steps[o] if o >= 0 else known[~o]
                for o in operands
            ]
            if keywords:
                named = {k: self.value(v) for k, v in keywords[0].items()}
                steps.append(Step(kind, what, found, named))
            else:
                steps.append(Step(kind, what, found))

    def value(self, v: Any) -> Any:
        """Returns an operand."""
        if type(v) is list:
            return [self.value(x) for x in v]
        if type(v) is not dict:
            return v
        ((kind, inner),) = v.items()
        if kind == "step":
            return self.steps[inner]
        if kind == "array":
            dtype, shape, data, scalar = inner
            array = np.frombuffer(base64.b64decode(data), _dtype(dtype)).reshape(shape)
            return array[()] if scalar else array
        if kind == "dict":
            return {k: self.value(x) for k, x in inner.items()}
        if kind == "ellipsis":
            return Ellipsis
        return _MADE[kind](self.value(inner))


_MADE: Mapping[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "slice": lambda parts: slice(*parts),
    "dtype": lambda name: _dtype(name),
}


def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind == "V" or hasattr(ml_dtypes, dtype.name) else dtype.str


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _node(node: Node) -> list[Any]:
    data = base64.b64encode(node.proto.SerializeToString()).decode()
    return [data, node.index, node.dtype, node.opset]


def _read_node(data: Sequence[Any]) -> Node:
    return Node(NodeProto.FromString(base64.b64decode(data[0])), *data[1:])


# ---- values --------------------------------------------------------------------------------------


class Values:
    """The values of steps for the weights that `weight` returns by name. `wanted`: the steps that
    `of` will be called with, once each; a value is dropped after its last use. A large weight is
    read again for each result.
    """

    def __init__(
        self, steps: Sequence[Step], wanted: Iterable[Step], weight: Callable[[str], Array]
    ) -> None:
        self._weight = weight
        self._values: dict[Step, Any] = {}
        self._large: list[Step] = []
        self._levels: dict[Step, int] = {}
        self._batches: dict[tuple[int, int], list[Step]] = {}
        below = [operands_of(s) for s in steps]
        self._below = dict(zip(steps, below, strict=True))
        self._uses = Counter(chain(wanted, chain.from_iterable(below)))
        if any(s.kind == "node" for s in steps):
            self._batch(steps)

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

    def failed(self, held: Iterable[Held]) -> list[Held]:
        """Returns the facts that do not hold. Raises as `of`."""
        with np.errstate(all="ignore"):  # for all of them: it takes as long as many a step
            return [h for h in held if not self._holds(h.predicate)]

    def _holds(self, p: Predicate) -> bool:
        found = self._of(p.step)
        if not p.same:
            return bool(found) is bool(p.value)
        expected = self._of(p.value) if isinstance(p.value, Step) else np.asarray(p.value)
        alike = found.dtype == expected.dtype and found.shape == expected.shape
        return bool(alike and found.tobytes() == expected.tobytes())

    def _of(self, step: Step) -> Array:
        found: Array = np.asarray(self._value(step))
        self._used([step])
        while self._large:
            self._values.pop(self._large.pop(), None)
        return found

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
        operands = [values[o] if type(o) is Step else o for o in s.operands]
        keywords = s.keywords
        if len(below) != sum(type(o) is Step for o in s.operands):
            operands = [substituted(o, values) for o in s.operands]
            keywords = substituted(keywords, values)
        if kind == "literal":
            values[s] = s.what
        elif kind in ("numpy", "call") and (function := _function(kind, s.what)) is not None:
            values[s] = function(*operands, **keywords)
        elif kind == "astype":
            values[s] = operands[0].astype(s.what)
        elif kind == "getitem":
            values[s] = operands[0][operands[1]]
        elif kind == "part":
            values[s] = operands[0][s.what]
        else:
            raise InputError(f"the record has a step '{kind} {s.what}' that does not exist")
        self._used(below)


@cache
def _function(kind: str, name: str) -> Callable[..., Any] | None:
    """The function that a step calls; None if a record may not call it."""
    if kind == "call":
        return _CALLS.get(name)
    found = getattr(np, name, None)
    return found if name in STATIC or isinstance(found, np.ufunc) else None


def substituted(value: Any, known: Mapping[Step, Any]) -> Any:
    """Returns nested operands with these values in place of their steps."""
    kind = type(value)
    if kind is Step:
        return known[value]
    if kind is list or kind is tuple:
        return kind([substituted(v, known) for v in value])
    if kind is dict:
        return {k: substituted(v, known) for k, v in value.items()}
    return value


def _above(s: Step, operand: Step) -> int:
    """1 if a node reads a value that onnxruntime does not compute in the same run."""
    if s.kind != "node":
        return 0
    return int(operand.kind != "node" or operand.what.opset != s.what.opset)


def _run(nodes: Iterable[Step], values: Mapping[Step, Any]) -> dict[Step, Array]:
    """Computes nodes in one run of onnxruntime. Raises InputError."""
    graph, names, wanted = onnx.GraphProto(name="constants"), dict[Any, str](), dict[Step, str]()
    opset = 0
    for k, s in enumerate(nodes):
        node, opset = NodeProto(), s.what.opset
        node.CopyFrom(s.what.proto)
        for i, operand in enumerate(s.operands):
            if operand is None:
                continue
            if operand in wanted if isinstance(operand, Step) else False:
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
