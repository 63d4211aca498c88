"""Arrays that record what is computed from them and which facts about them were used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxgrad.ir.derivations import Derivations, Predicate, Step
from onnxgrad.ir.types import Array

# functions of numpy whose result has a size that does not depend on values
STATIC = frozenset({
    "all", "amax", "amin", "any", "argsort", "array_equal", "broadcast_to", "clip", "concatenate",
    "copy", "count_nonzero", "cumsum", "expand_dims", "flip", "max", "mean", "min", "moveaxis",
    "prod", "ravel", "repeat", "reshape", "roll", "sort", "split", "squeeze", "stack", "sum",
    "swapaxes", "take", "tile", "transpose", "tril", "triu", "where",
})  # fmt: skip
# those among them that keep the order of elements, so that several in a row are one `reshape`
_RESHAPING = frozenset({"expand_dims", "ravel", "reshape", "squeeze"})
_ABOUT = frozenset({"shape", "dtype", "ndim", "size", "nbytes", "itemsize", "flags"})
# methods that are functions of numpy with the same arguments
_METHODS = frozenset({
    "all", "any", "cumsum", "max", "mean", "min", "ravel", "repeat", "squeeze", "sum", "take",
})  # fmt: skip


def predicate(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares that traced arguments of a function matter only for whether the value that it
    returns is true.
    """
    name = function.__name__

    def decided(*arguments: Any) -> Any:
        traced = [a for a in arguments if isinstance(a, Traced)]
        answer = function(*map(plain, arguments))
        if traced:
            step = Step("call", name, _steps(list(arguments)))
            traced[0].derivations.pending.append(Predicate(step, bool(answer)))
        return answer

    decided.__doc__, decided.__name__ = function.__doc__, name
    return decided


def recorded(function: Callable[[Array], Array]) -> Callable[[Any], Any]:
    """Declares that a function of an array returns an array: of a traced array, a traced one."""
    name = function.__name__

    def traced(array: Any) -> Any:
        if not isinstance(array, Traced):
            return function(array)
        step = Step("call", name, [array.step])
        return Traced(function(array.array), step, array.derivations)

    traced.__doc__, traced.__name__ = function.__doc__, name
    return traced


def plain(value: Any) -> Any:
    """The array of a traced array without a record; other values as they are."""
    return value.array if isinstance(value, Traced) else value


def tracing(array: Array | None, source: Step | None, kept: Derivations | None) -> Array | None:
    """A constant from this source, traced if a record is kept and it depends on weights."""
    if array is None or source is None or not source.traced or kept is None:
        return array
    return cast("Array", Traced(array, source, kept))


class Traced(NDArrayOperatorsMixin):
    """An array and the step that computes it."""

    __slots__ = ("array", "derivations", "step")
    __array_priority__ = 1000

    def __init__(self, array: Array, step: Step, derivations: Derivations) -> None:
        self.array, self.step, self.derivations = np.asarray(array), step, derivations

    def read(self) -> Array:
        """Returns the elements, which must therefore stay as they are."""
        self.derivations.pending.append(Predicate(self.step, self.array, same=True))
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.read()
        return array if dtype is None else array.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if any(out is self for out in more.get("out", ())):
            more.pop("out")  # a += b makes a new value
        known = getattr(np, ufunc.__name__, None) is ufunc and method == "__call__" and not more
        if not known:
            return getattr(ufunc, method)(*map(_read, inputs), **more)
        return self._numpy(ufunc, inputs, more)

    def __array_function__(
        self, function: Any, types: Any, inputs: Sequence[Any], more: Mapping[str, Any]
    ) -> Any:
        name = function.__name__
        if name in _ABOUT:
            return function(*map(plain, inputs), **more)
        conditional = name == "where" and len(inputs) != 3
        if name not in STATIC or getattr(np, name, None) is not function or conditional:
            return function(*_read(list(inputs)), **_read(dict(more)))
        return self._numpy(function, inputs, more)

    def _numpy(self, function: Any, inputs: Sequence[Any], more: Mapping[str, Any]) -> Any:
        arrays, keywords = _each(list(inputs), plain), _each(dict(more), plain)
        result = function(*arrays, **keywords)
        first, name = inputs[0], function.__name__
        if isinstance(first, Traced) and not more.keys() - {"axis", "shape"}:
            # a further argument of `ravel` or `reshape` may be another order
            if name in _RESHAPING and len(inputs) <= 2 - (name == "ravel"):
                return first._reshaped(result)
            if name == "broadcast_to" and result.shape == first.array.shape:
                return self._of(result, first.step)
        step = Step("numpy", name, _steps(list(inputs)), _steps(dict(more)))
        if isinstance(result, (list, tuple)):
            return [self._of(r, Step("part", i, [step])) for i, r in enumerate(result)]
        return self._of(result, step)

    def _reshaped(self, array: Array) -> Traced:
        """Returns these elements in the shape of `array`, without a step if that is the one that
        they had before.
        """
        step, shapes = self.step, self.derivations.shapes
        shapes.setdefault(step, self.array.shape)
        if step.kind == "numpy" and step.what == "reshape" and step.operands[0] in shapes:
            step = step.operands[0]
        if shapes[step] != array.shape:
            step = Step("numpy", "reshape", [step, array.shape])
        return self._of(array, step)

    def _of(self, array: Any, step: Step) -> Traced:
        return Traced(np.asarray(array), step, self.derivations)

    def __getattr__(self, name: str) -> Any:
        if name in _ABOUT:
            return getattr(self.array, name)
        if name in _METHODS:
            return lambda *a, **k: self._numpy(getattr(np, name), [self, *a], k)
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.read(), name)

    def __getitem__(self, index: Any) -> Traced:
        index = _read(index)
        return self._of(self.array[index], Step("getitem", None, [self.step, index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        array = np.array(self.read())
        array[_read(index)] = _read(value)
        self.array, self.step = array, Step("literal", array)

    def astype(self, dtype: Any, **more: Any) -> Traced:
        """As of an array; the layout options have no effect on elements."""
        dtype = np.dtype(dtype)
        if dtype == self.array.dtype:
            return self._of(self.array.copy(), self.step)
        return self._of(self.array.astype(dtype), Step("astype", dtype, [self.step]))

    def reshape(self, *shape: Any) -> Traced:
        """As of an array."""
        wanted = shape[0] if len(shape) == 1 else shape
        return cast("Traced", self._numpy(np.reshape, [self, wanted], {}))

    def transpose(self, *axes: Any) -> Traced:
        """As of an array."""
        wanted = [axes[0] if len(axes) == 1 else axes] if axes else []
        return cast("Traced", self._numpy(np.transpose, [self, *wanted], {}))

    @property
    def T(self) -> Traced:
        """As of an array."""
        return self.transpose()

    def __bool__(self) -> bool:
        value = bool(self.array)
        self.derivations.pending.append(Predicate(self.step, value))
        return value

    def __float__(self) -> float:
        return float(self.read())

    def __int__(self) -> int:
        return int(self.read())

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Traced]:
        return (self[i] for i in range(len(self.array)))

    def __str__(self) -> str:
        return str(self.read())

    def __repr__(self) -> str:
        return f"Traced({self.step})"


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Changes the traced arrays in nested lists, tuples and dicts."""
    if isinstance(value, Traced):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_each(v, change) for v in value])
    if isinstance(value, dict):
        return {k: _each(v, change) for k, v in value.items()}
    return value


def _read(value: Any) -> Any:
    return _each(value, Traced.read)


def _steps(value: Any) -> Any:
    return _each(value, lambda v: v.step)
