"""The engine that runs the step graph unchanged, with the update in the graph and without copies
between steps.

States are written to the memory from which they were read if that is right in every order of nodes
(`may_be_overwritten`). Parameters have two buffers that swap after each step, so that the old
values exist if the loss is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import ARITHMETIC, MOVES
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.types import Array, is_static, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.train.engines.base import Engine, Result
from onnxgrad.train.engines.session import checked, dtype_of, open_session, refusing, sizes_of
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep

# operators whose results may share the memory of an operand, or whose readers onnxruntime may let
# read the operand instead
_ALIASES = frozenset((*MOVES, "Cast", "Concat", "Dropout", "Optional", "Pad"))
_ELEMENTWISE = frozenset((*ARITHMETIC, "Abs", "Max", "Min", "Neg", "Pow", "Sign", "Sqrt", "Where"))


def may_be_overwritten(block: BindingBlock, old: Var, new: Var) -> bool:
    """Whether the output `new` may use the memory of the input `old`."""
    own = new.definition
    if own is None or old.type != new.type or not is_static(old.shape) or old.returned:
        return False
    readers = _readers(old)
    before = _ancestors(own)
    for b in readers:
        if b is own:
            if b.op not in _ELEMENTWISE or any(
                v is not None and v.shape not in (old.shape, ()) for v in b.inputs
            ):
                return False
        elif b not in before or b.block is not block:
            return False
    return True


def _readers(old: Var) -> set[Binding]:
    """Returns the bindings that read the value's memory, also in nested blocks."""
    found: set[Binding] = set()
    todo = [old]
    while todo:
        v = todo.pop()
        for b in v.users:
            if b in found:
                continue
            found.add(b)
            if b.op in _ALIASES or b.blocks:
                todo += [o for o in b.outputs if o is not None]
    return found


def _ancestors(b: Binding) -> set[Binding]:
    found: set[Binding] = set()
    todo = [b]
    while todo:
        for v in todo.pop().reads():
            if v.definition is not None and v.definition not in found:
                found.add(v.definition)
                todo.append(v.definition)
    return found


InPlace = Literal["none", "states", "all"]
_STATES = ("statistic", "state", "average", "accumulated", "counted", "scaling")
_SUMS = ("accumulated", "counted")


@dataclass
class _File:
    """A graph of the step and its session, the values in it by name, its inputs and outputs."""

    program: Program
    session: Any

    def __post_init__(self) -> None:
        block = self.program.main
        self.values = {v.name: v for v in block.vars()}
        self.inputs = {v.name for v in block.inputs}
        self.outputs = {v.name for v in block.outputs}


class GraphEngine(Engine):
    """Runs `train.onnx`, and `update.onnx` if it exists, in onnxruntime, on CPU or CUDA.

    in_place: which values may share one buffer: "states", "all" (parameters too, if every reader
    comes before the update, as with clipping by the global norm), or "none".
    """

    def __init__(
        self,
        step: TrainingStep,
        *,
        provider: str = "cpu",
        threads: int | None = None,
        in_place: InPlace = "states",
    ) -> None:
        super().__init__(step)
        self._device = "cuda" if provider == "cuda" else "cpu"
        self._files = [
            _File(program, open_session(program, provider, threads))
            for program in (step.train, step.update)
            if program is not None
        ]
        self._batch = step.manifest.of_role("batch")
        self._carried = [fed for fed in step.manifest.inputs if fed.next is not None]
        self._written = {
            fed.name: [i for i, file in enumerate(self._files) if fed.next in file.outputs]
            for fed in self._carried
        }
        kept = {"none": ("parameter", *_STATES), "states": ("parameter",), "all": ()}[in_place]
        self._single = {
            fed.name for fed in self._carried if fed.role not in kept and self._overwritable(fed)
        }
        # scalars that each step receives
        self._given = {
            fed.name: (fed.role, np.zeros((), dtype_of(fed)))
            for fed in step.manifest.of_role("step", "learning_rate", "seed")
        }
        loss = next(v for v in step.train.main.outputs if v.name == step.manifest.loss)
        self._loss = np.zeros((), numpy_dtype(loss.dtype))
        self.put(step.initial)

    def _overwritable(self, fed: Fed) -> bool:
        files = [self._files[i] for i in self._written[fed.name]]
        return all(
            may_be_overwritten(f.program.main, f.values[fed.name], f.values[fed.next or ""])
            for f in files
        )

    def put(self, values: Mapping[str, Array]) -> None:
        """Continues from these values."""
        self.spoiled = False
        self._buffers: list[dict[str, Any]] = [{}, {}]
        # a value on the CPU shares its memory with the array, which must live as long
        self._memory: list[dict[str, Array]] = [{}, {}]
        for fed in self._carried:
            now = np.empty(sizes_of(fed), dtype_of(fed))
            safetensors_file.copy(values, fed.name, now.reshape(-1))
            other = now if fed.name in self._single else np.zeros_like(now)
            for which, array in enumerate((now, other)):
                self._memory[which][fed.name] = array
                self._buffers[which][fed.name] = (
                    self._buffers[0][fed.name] if which and other is now else self._value(array)
                )
        # how often each file ran: its results are in the buffer of that parity
        self._runs = [0] * len(self._files)
        self._bindings: dict[tuple[int, ...], Any] = {}
        self._last_run: list[int] = []

    def _value(self, array: Array) -> Any:
        import onnxruntime as ort

        if array.dtype.name == "bfloat16":
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16)
        return ort.OrtValue.ortvalue_from_numpy(array, self._device)

    def _now(self, name: str) -> int:
        """Returns the index of the buffer with the current value."""
        return sum(self._runs[i] for i in self._written[name]) % 2

    def _bound(self, file: _File) -> Any:
        """Returns bindings of a file from the current buffers to the others."""
        binding = file.session.io_binding()
        for fed in self._carried:
            now = self._now(fed.name)
            if fed.name in file.inputs:
                binding.bind_ortvalue_input(fed.name, self._buffers[now][fed.name])
            if fed.next in file.outputs:
                binding.bind_ortvalue_output(fed.next, self._buffers[1 - now][fed.name])
        for name, (_, array) in self._given.items():
            if name in file.inputs:
                binding.bind_ortvalue_input(name, self._host(array))
        if self.task.manifest.loss in file.outputs:
            binding.bind_ortvalue_output(self.task.manifest.loss, self._host(self._loss))
        for name in self._metrics(file):
            binding.bind_output(name, "cpu")
        return binding

    def _metrics(self, file: _File) -> list[str]:
        manifest = self.task.manifest
        names = [*manifest.metrics, manifest.gradient_norm, manifest.divisor]
        return [name for name in names if name is not None and name in file.outputs]

    def _host(self, array: Array) -> Any:
        import onnxruntime as ort

        return ort.OrtValue.ortvalue_from_numpy(array)

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """Runs one step, or one micro-batch of it. Raises InputError for a batch that the graph
        does not accept.
        """
        # the runtime reads this memory, so it lives until the run is over
        feeds = checked(batch, self._batch)
        given = {"step": number, "learning_rate": rate, "seed": self.draw(number)}
        for role, array in self._given.values():
            array[...] = given[role]
        self._last_run = []
        with refusing(feeds, getattr(batch, "rows", None)):
            metrics = self._run(0, feeds)
        if len(self._files) > 1 and self.last and np.isfinite(self._loss):
            metrics |= self._run(1, {})
        return Result(float(self._loss), metrics)

    def _run(self, index: int, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs a file and returns its metrics."""
        file, key = self._files[index], (index, *(n % 2 for n in self._runs))
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bindings[key] = self._bound(file)
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._host(array))
        file.session.run_with_iobinding(binding)
        self._runs[index] += 1
        self._last_run.append(index)
        names = self._metrics(file)  # they were bound last
        returned = binding.get_outputs()[-len(names) :] if names else []
        return {name: value.numpy() for name, value in zip(names, returned, strict=True)}

    def back(self) -> None:
        """Undoes the last step of values with two buffers, by default the parameters. Sums over
        micro-batches start again.
        """
        self.spoiled = any(
            fed.name in self._single and fed.role not in _SUMS
            for fed in self._carried
            if set(self._written[fed.name]) & set(self._last_run)
        )
        for index in self._last_run:
            self._runs[index] -= 1
        self._last_run = []
        for fed in self._carried:
            if fed.role in _SUMS:
                self._buffers[self._now(fed.name)][fed.name].update_inplace(
                    np.zeros(sizes_of(fed), dtype_of(fed))
                )

    @property
    def held(self) -> dict[str, Array]:
        """Returns the current parameters and states in their buffers; for a device, copies."""
        now = {fed.name: self._now(fed.name) for fed in self._carried}
        if self._device == "cpu":
            return {name: self._memory[which][name] for name, which in now.items()}
        return {name: self._buffers[which][name].numpy() for name, which in now.items()}
