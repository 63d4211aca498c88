"""The gradient graph, with the update beside it: parameters in one flat buffer, updated a
cache-sized block at a time.

A graph's elementwise nodes each read and write whole tensors, and those of all weights together
leave the cache; the same formula over blocks of 16 k numbers does not. The graph is done with the
weights before they change, so nothing needs a second buffer, and a loss that is no number has
changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.train import array_math
from onnxgrad.train.engines.base import Engine, Result, checked, open_session, seed_of
from onnxgrad.train.manifest import Fed, Manifest
from onnxgrad.train.optimizers import OPTIMIZERS, Optimizer
from onnxgrad.train.optimizers.base import Moment
from onnxgrad.train.step import TrainingStep

# numbers per block: with a gradient, two states and the temporaries of a formula they fit into a
# core's own cache
_BLOCK = 1 << 14
# each tensor begins at a multiple of this, in numbers: 64 bytes of float32
_ALIGNED = 16


def fits(step: TrainingStep) -> bool:
    """Whether a step's update can be computed beside the graph: its optimiser is ours, and
    element by element.
    """
    optimizer = OPTIMIZERS.get(str(step.manifest.optimizer.get("name")))
    beside = {fed.name for fed in step.manifest.running()}
    carried = [fed for fed in step.manifest.inputs if fed.next is not None]
    dtypes = {fed.dtype for fed in carried if fed.name not in beside}
    mixed = len(dtypes) != 1 or "master" in step.manifest.optimizer
    told = step.manifest
    beyond = told.groups or told.average or told.loss_scaling or told.schedule or told.update
    return optimizer is not None and optimizer.elementwise and not mixed and not beyond


def optimizer_of(manifest: Manifest) -> Optimizer:
    """The optimiser that a manifest names. Raises InputError for one that is unknown."""
    told = dict(manifest.optimizer)
    name = told.pop("name", None)
    if name not in OPTIMIZERS:
        raise InputError(f"the step's optimiser '{name}' is none of {', '.join(OPTIMIZERS)}")
    hyperparameters: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in told.items()
    }
    return OPTIMIZERS[name](**hyperparameters)


def gradient_graph(step: TrainingStep) -> Program:
    """The step without its update: loss, metrics, running statistics and adjoints out; batch,
    parameters, statistics and seed in.
    """
    program = load(to_proto(step.train))
    block, manifest = program.main, step.manifest
    moved = {fed.next for fed in manifest.running()}
    following = {fed.next for fed in manifest.inputs if fed.next not in moved}
    for v in [v for v in block.outputs if v.name in following]:
        block.remove_output(v)
    values = {v.name: v for v in block.vars()}
    for fed in manifest.of_role("parameter"):
        adjoint = values[fed.gradient or ""]
        if adjoint.returned or adjoint.definition is None:
            with emitting(block):
                adjoint = op.Identity(adjoint)
        block.add_output(adjoint)
    block.remove_unused()
    kept = {fed.name for fed in [*manifest.of_role("batch", "seed"), *manifest.of_model()]}
    block.inputs = [v for v in block.inputs if v.name in kept]
    for v in [v for v in block.initializers.values() if not v.use_count]:
        block.remove_initializer(v)
    return load(to_proto(program))


class BlocksEngine(Engine):
    """onnxruntime forms the gradient on the CPU, numpy applies the optimiser's formula to it."""

    def __init__(self, step: TrainingStep, *, threads: int | None = None) -> None:
        super().__init__(step)
        manifest = step.manifest
        self._optimizer = optimizer_of(manifest)
        graph = gradient_graph(step)
        self._session = open_session(graph, "cpu", threads)
        self._batch = manifest.of_role("batch")
        self._parameters = manifest.of_role("parameter")
        self._states: dict[str, list[Fed]] = {}
        self._running = manifest.running()
        of_optimizer = [fed for fed in manifest.of_role("state") if fed not in self._running]
        for fed in of_optimizer:
            self._states.setdefault(fed.name.removeprefix(f"{fed.of}."), []).append(fed)
        wide = {fed.name for fed in self._parameters if fed.shape}
        self._single = {
            slot
            for slot, feds in self._states.items()
            if any(f.shape == () and f.of in wide for f in feds)
        }
        outputs = graph.main.outputs
        self._adjoints = [v.name for v in outputs[-len(self._parameters) :]]
        loss = next(v for v in outputs if v.name == manifest.loss)
        self._loss = np.zeros((), numpy_dtype(loss.dtype))
        self._drawn = np.zeros((), np.int64)
        self._dtype = np.dtype(self._parameters[0].dtype)
        self._places, self._size = _places(self._parameters)
        self.put(step.initial)

    def put(self, values: Mapping[str, Array]) -> None:
        """Go on from these values."""
        self._p = self._flat({fed.name: values[fed.name] for fed in self._parameters})
        self._g = np.zeros(self._size, self._dtype)
        own = {slot: feds for slot, feds in self._states.items() if slot not in self._single}
        self._s = {
            slot: self._flat({fed.of or "": values[fed.name] for fed in feds})
            for slot, feds in own.items()
        }
        # one number for all parameters
        self._shared = {slot: values[self._states[slot][0].name][()] for slot in self._single}
        # running statistics as they are, and as the graph moves them
        self._statistics = {
            fed.name: (np.array(values[fed.name]), np.array(values[fed.name]))
            for fed in self._running
        }
        self._binding = self._bound()

    def _flat(self, arrays: Mapping[str, Array]) -> Array:
        flat = np.zeros(self._size, self._dtype)
        for name, array in arrays.items():
            flat[self._places[name]] = array.reshape(-1)
        return flat

    def _bound(self) -> Any:
        import onnxruntime as ort

        binding = self._session.io_binding()
        for fed, adjoint in zip(self._parameters, self._adjoints, strict=True):
            place, shape = self._places[fed.name], _sizes(fed)
            binding.bind_ortvalue_input(
                fed.name, ort.OrtValue.ortvalue_from_numpy(self._p[place].reshape(shape))
            )
            binding.bind_ortvalue_output(
                adjoint, ort.OrtValue.ortvalue_from_numpy(self._g[place].reshape(shape))
            )
        for fed in self._running:
            now, moved = self._statistics[fed.name]
            binding.bind_ortvalue_input(fed.name, ort.OrtValue.ortvalue_from_numpy(now))
            binding.bind_ortvalue_output(fed.next, ort.OrtValue.ortvalue_from_numpy(moved))
        for fed in self.task.manifest.of_role("seed"):
            binding.bind_ortvalue_input(fed.name, ort.OrtValue.ortvalue_from_numpy(self._drawn))
        binding.bind_ortvalue_output(
            self.task.manifest.loss, ort.OrtValue.ortvalue_from_numpy(self._loss)
        )
        for name in self.task.manifest.metrics:
            binding.bind_output(name, "cpu")
        return binding

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """One step; nothing changes where the loss is no finite number. Raises InputError for a
        batch that is none.
        """
        self._drawn[...] = seed_of(self.seed, number)
        metrics = self._differentiate(batch)
        if np.isfinite(self._loss):
            self._update(number, rate)
            for now, moved in self._statistics.values():
                now[...] = moved
        return Result(float(self._loss), metrics)

    def _differentiate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The loss and the gradient into their memory; the metrics are returned."""
        import onnxruntime as ort

        # the runtime reads this memory, so it lives until the run is over
        feeds = checked(batch, self._batch)
        for name, array in feeds.items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        self._session.run_with_iobinding(self._binding)
        names = self.task.manifest.metrics  # they were bound last
        returned = self._binding.get_outputs()[-len(names) :] if names else []
        return {name: value.numpy() for name, value in zip(names, returned, strict=True)}

    def _update(self, number: int, rate: float) -> None:
        """The optimiser's formula, block by block, in place."""
        at = Moment(
            np.float32(rate),
            np.float64(number),
            array_math,
            helper.np_dtype_to_tensor_dtype(self._dtype),
        )
        shared = dict(self._shared)
        with np.errstate(all="ignore"):
            for start in range(0, self._size, _BLOCK):
                part = slice(start, start + _BLOCK)
                held = {slot: flat[part] for slot, flat in self._s.items()} | shared
                new, kept = self._optimizer.update(self._p[part], self._g[part], held, at)
                self._p[part] = new
                for slot, flat in self._s.items():
                    flat[part] = kept[slot]
                self._shared = {slot: kept[slot] for slot in shared}

    def back(self) -> None:
        """Nothing to undo: a step whose loss is no number has changed nothing."""

    @property
    def values(self) -> dict[str, Array]:
        """Copies of what is held now."""
        found = {fed.name: self._part(self._p, fed.name, fed) for fed in self._parameters}
        for slot, feds in self._states.items():
            for fed in feds:
                single = slot in self._single
                found[fed.name] = (
                    np.array(self._shared[slot])
                    if single
                    else self._part(self._s[slot], fed.of or "", fed)
                )
        return found | {name: now.copy() for name, (now, _) in self._statistics.items()}

    def _part(self, flat: Array, name: str, fed: Fed) -> Array:
        return flat[self._places[name]].reshape(_sizes(fed)).copy()


def _sizes(fed: Fed) -> tuple[int, ...]:
    """A parameter's shape, all of whose sizes are known."""
    return tuple(d for d in fed.shape or () if isinstance(d, int))


def _places(parameters: list[Fed]) -> tuple[dict[str, slice], int]:
    """Where each parameter lies in the flat buffers, and how long these are."""
    places: dict[str, slice] = {}
    end = 0
    for fed in parameters:
        length = math.prod(_sizes(fed))
        places[fed.name] = slice(end, end + length)
        end += -(-length // _ALIGNED) * _ALIGNED
    return places, end
