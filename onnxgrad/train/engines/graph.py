"""The portable step run as it is: update and all in one graph, with nothing copied from step to
step.

States are written where they were read, as far as that can be shown to be right (`in_place`);
parameters have two buffers that change places after each step, so that those of before are there
when a loss turns out to be no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.train.engines.base import Engine, Result, checked, dtype_of, open_session
from onnxgrad.train.in_place import may_be_overwritten
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep

InPlace = Literal["none", "states", "all"]


class GraphEngine(Engine):
    """onnxruntime runs `train.onnx`, on CPU or CUDA.

    in_place: which values may have one buffer: "states", "all" (parameters too, where every reader
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
        self._session = open_session(step.train, provider, threads)
        self._device = "cuda" if provider == "cuda" else "cpu"
        self._batch = step.manifest.of_role("batch")
        self._carried = [fed for fed in step.manifest.inputs if fed.next is not None]
        named = {v.name: v for v in step.train.main.vars()}
        roles = {"none": (), "states": ("state",), "all": ("state", "parameter")}[in_place]
        self._single = {
            fed.name
            for fed in self._carried
            if fed.role in roles
            and may_be_overwritten(step.train.main, named[fed.name], named[fed.next or ""])
        }
        self._number, self._rate = (
            np.zeros((), dtype_of(self._only(role))) for role in ("step", "learning_rate")
        )
        self._loss = np.zeros((), _loss_dtype(step))
        self.put(step.initial)

    def _only(self, role: Any) -> Fed:
        return self.task.manifest.of_role(role)[0]

    def put(self, values: Mapping[str, Array]) -> None:
        """Go on from these values."""
        self._buffers: list[dict[str, Any]] = [{}, {}]
        # a value on the CPU shares its memory with the array, which must live as long
        self._memory: list[Array] = []
        for fed in self._carried:
            self._buffers[0][fed.name] = self._value(np.array(values[fed.name], dtype_of(fed)))
            self._buffers[1][fed.name] = (
                self._buffers[0][fed.name]
                if fed.name in self._single
                else self._value(np.zeros(values[fed.name].shape, dtype_of(fed)))
            )
        self._now = 0
        self._bindings = [self._bound(0), self._bound(1)]

    def _value(self, array: Array) -> Any:
        import onnxruntime as ort

        self._memory.append(array)
        if array.dtype.name == "bfloat16":
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16)
        return ort.OrtValue.ortvalue_from_numpy(array, self._device)

    def _bound(self, now: int) -> Any:
        """The bindings of a step from one set of buffers into the other."""
        binding = self._session.io_binding()
        for fed in self._carried:
            binding.bind_ortvalue_input(fed.name, self._buffers[now][fed.name])
            binding.bind_ortvalue_output(fed.next, self._buffers[1 - now][fed.name])
        for role, array in (("step", self._number), ("learning_rate", self._rate)):
            binding.bind_ortvalue_input(self._only(role).name, self._host(array))
        binding.bind_ortvalue_output(self.task.manifest.loss, self._host(self._loss))
        for name in self.task.manifest.metrics:
            binding.bind_output(name, "cpu")
        return binding

    def _host(self, array: Array) -> Any:
        import onnxruntime as ort

        return ort.OrtValue.ortvalue_from_numpy(array)

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """One step. Raises InputError for a batch that the graph does not take."""
        # the runtime reads this memory, so it lives until the run is over
        feeds = checked(batch, self._batch)
        binding = self._bindings[self._now]
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._host(array))
        self._number[...], self._rate[...] = number, rate
        self._session.run_with_iobinding(binding)
        self._now = 1 - self._now
        names = self.task.manifest.metrics  # they were bound last
        returned = binding.get_outputs()[-len(names) :] if names else []
        metrics = {name: value.numpy() for name, value in zip(names, returned, strict=True)}
        return Result(float(self._loss), metrics)

    def back(self) -> None:
        """Undo the last step of what has two buffers, which the parameters have unless told
        otherwise.
        """
        self._now = 1 - self._now

    @property
    def values(self) -> dict[str, Array]:
        """Copies of what is held now."""
        return {
            fed.name: np.array(self._buffers[self._now][fed.name].numpy()) for fed in self._carried
        }


def _loss_dtype(step: TrainingStep) -> np.dtype[Any]:
    loss = next(v for v in step.train.main.outputs if v.name == step.manifest.loss)
    return numpy_dtype(loss.dtype)
