"""Records an elementwise formula once per step and replays it block by block in preallocated
memory.

NumPy allocates memory for every intermediate result, which takes as long as the arithmetic. Here a
formula is called with stand-ins that record each function and its operands. The same functions then
run over the blocks in the same order, so that the numbers are equal to the last bit, and each
result overwrites one that is not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxgrad.ir.types import Array
from onnxgrad.train.engines.flat_buffers import aligned

# values by name in, their new values by name out
Formula = Callable[[dict[str, Any]], Mapping[str, Any]]
DType = np.dtype[Any]


class _Call(NamedTuple):
    """A function with the values that it reads and computes, or with their places in memory."""

    function: np.ufunc
    operands: tuple[int, ...]
    result: int


class _Value(NDArrayOperatorsMixin):
    """A stand-in for a block of numbers that records arithmetic with it."""

    __slots__ = ("dtype", "index", "tape")
    shape = (1,)

    def __init__(self, tape: _Tape, index: int, dtype: DType) -> None:
        self.tape, self.index, self.dtype = tape, index, dtype

    def __array__(self, *args: Any, **given: Any) -> Array:
        raise TypeError("only functions of numpy that work element by element can be recorded")

    def __array_ufunc__(self, function: np.ufunc, method: str, *xs: Any, **given: Any) -> Any:
        if method != "__call__" or given or function.nout != 1:
            return NotImplemented
        return self.tape.note(function, xs)


class _Tape:
    """Calls in order, over values numbered from 0: the formula's operands, then numbers and
    results.

    types: dtypes of results by function and dtypes of operands, as far as they are known.
    """

    def __init__(self, dtypes: Sequence[DType], types: dict[Any, DType]) -> None:
        self.operands = [_Value(self, i, dtype) for i, dtype in enumerate(dtypes)]
        self.values: list[Any] = [*self.operands]
        self.calls: list[_Call] = []
        self._types = types

    def note(self, function: np.ufunc, xs: Sequence[Any]) -> _Value:
        """Records a call and returns the stand-in of its result."""
        key = (function, *[x.dtype if isinstance(x, _Value) else type(x) for x in xs])
        if (dtype := self._types.get(key)) is None:
            tried = function(*[np.ones(1, x.dtype) if isinstance(x, _Value) else x for x in xs])
            dtype = self._types[key] = tried.dtype
        places = tuple([x.index if isinstance(x, _Value) else self._number(x) for x in xs])
        result = _Value(self, len(self.values), dtype)
        self.values.append(result)
        self.calls.append(_Call(function, places, result.index))
        return result

    def _number(self, x: Any) -> int:
        self.values.append(x)
        return len(self.values) - 1


_Plan = tuple[list[_Call], dict[int, Array]]


class Replay:
    """Updates flat arrays by formulas, `size` numbers at a time, with shared scratch memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._types: dict[Any, DType] = {}
        self._plans: dict[Any, _Plan] = {}
        self._scratch: dict[DType, list[Array]] = {}

    def update(self, formula: Formula, arrays: Mapping[str, Array], part: slice) -> dict[str, Any]:
        """Writes the results of the formula over that part of the arrays with their names, and
        returns its other results, which are numbers.

        Raises TypeError for a formula that does anything except calling elementwise NumPy
        functions.
        """
        tape = _Tape([array.dtype for array in arrays.values()], self._types)
        found = dict(formula(dict(zip(arrays, tape.operands, strict=True))))
        becomes: dict[int, int] = {}
        for index, name in enumerate(arrays):
            value = found.pop(name, tape.operands[index])
            if value.index != index and (value.index in becomes or value.index < len(arrays)):
                value = +value  # another array's new value, or old one: a copy
            if value.index != index:
                becomes[value.index] = index
        calls, scratch = self._plan(tape, becomes)
        memory = list(tape.values)
        flat = list(arrays.values())
        for start in range(part.start, part.stop, self._size):
            stop = min(start + self._size, part.stop)
            memory[: len(flat)] = [array[start:stop] for array in flat]
            for place, array in scratch.items():
                memory[place] = array[: stop - start]
            for function, operands, result in calls:
                function(*[memory[i] for i in operands], out=memory[result])
        return found

    def _plan(self, tape: _Tape, becomes: Mapping[int, int]) -> _Plan:
        """Returns where the calls of a tape read and write, usually the plan of the step before."""
        key = (*tape.calls, *becomes.items(), *[v.dtype for v in tape.operands])
        if key not in self._plans:
            calls, dtypes = laid_out(tape, becomes)
            self._plans[key] = calls, self._memory(dtypes)
        return self._plans[key]

    def _memory(self, dtypes: Mapping[int, DType]) -> dict[int, Array]:
        """Returns scratch arrays for these places."""
        taken: dict[DType, int] = {}
        found = {}
        for place, dtype in dtypes.items():
            held, number = self._scratch.setdefault(dtype, []), taken.get(dtype, 0)
            if number == len(held):
                held.append(aligned(self._size, dtype))
            found[place] = held[number]
            taken[dtype] = number + 1
        return found


def laid_out(tape: _Tape, becomes: Mapping[int, int]) -> tuple[list[_Call], dict[int, DType]]:
    """Returns the calls over places in memory, and the dtypes of the places that are scratch.

    becomes: the arrays that results overwrite. A result is written where nothing is read any more:
    the new value of an array into that array if possible, any other over an operand, else into
    scratch. Results that come too early for their array are copied at the end.
    """
    last = {v: i for i, call in enumerate(tape.calls) for v in call.operands}
    place = {v: v for v in last}  # operands and numbers stay where they are
    owner = {array: array for array in becomes.values()}  # of each place that may be written
    scratch: dict[int, DType] = {}
    calls = []
    for i, (function, operands, result) in enumerate(tape.calls):
        dtype = tape.values[result].dtype
        over = [becomes[result]] if result in becomes else [place[v] for v in operands]
        wanted = (*over, *scratch)
        target = next(
            (
                p
                for p in wanted
                if p in owner
                and owner[p] not in becomes
                and last.get(owner[p], i) <= i
                and tape.values[p].dtype == dtype
            ),
            None,
        )
        if target is None:
            target = result
            scratch[result] = dtype
        calls.append(_Call(function, tuple([place[v] for v in operands]), target))
        place[result], owner[target] = target, result
    late = [(v, array) for v, array in becomes.items() if place[v] != array]
    return calls + [_Call(np.positive, (place[v],), array) for v, array in late], scratch
