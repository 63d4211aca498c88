"""Steps as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import NodeProto

from onnxgrad.errors import NotProved
from onnxgrad.ir.derivations import Node, Step, operands_of


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
            return self._array(np.asarray(value), isinstance(value, np.generic))
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

    def _array(self, array: np.ndarray[Any, Any], scalar: bool) -> Any:
        if array.dtype == object:  # computed sizes: integers without a width, and expressions
            return {"objects": [list(array.shape), [self.value(v) for v in array.flat]]}
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return {"array": [_name(array.dtype), list(array.shape), data, scalar]}


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
        if kind == "objects":
            shape, items = inner
            array = np.empty(len(items), object)
            array[:] = [self.value(x) for x in items]
            return array.reshape(shape)
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
