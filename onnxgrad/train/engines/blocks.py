"""The engine that runs the gradient graph and applies the update in NumPy: parameters in one flat
buffer, updated in blocks of the size of the cache.

The elementwise nodes of a graph each read and write whole tensors, which together do not fit into
the cache; the same formula over blocks of 32 k numbers does. The graph has finished with the
weights before they change, so no second buffer is needed, and a step whose loss is not finite
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.train import array_math
from onnxgrad.train.divergence import divisor_of
from onnxgrad.train.engines.base import Engine, Result
from onnxgrad.train.engines.flat_buffers import Region, aligned, laid_out, made_ready, slot_of
from onnxgrad.train.engines.formula_replay import Replay
from onnxgrad.train.engines.session import checked, give_back, open_session, refusing, sizes_of
from onnxgrad.train.integer_weights import rounding_scales
from onnxgrad.train.manifest import Fed
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.optimizers.base import Moment
from onnxgrad.train.schedules import schedule_of
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.update.emission import prune

# numbers per block: with a gradient, two states and the temporaries of a formula they fit into a
# core's own cache
_BLOCK = 1 << 15
# keys beside the names of states
_WEIGHT, _GRADIENT = "", "gradient"


def fits(step: TrainingStep) -> bool:
    """Whether a step's update can be computed outside of the graph: its optimisers and its schedule
    are built in and work element by element, all its values have one dtype, there is no loss
    scaling, and no weight is the scale of a quantisation, which has bounds.
    """
    manifest = step.manifest
    optimizers = [manifest.optimizer, *(group["optimizer"] for group in manifest.groups)]
    beside = {fed.name for fed in manifest.running()}
    dtypes = {f.dtype for f in manifest.inputs if f.next is not None and f.name not in beside}
    if len(dtypes) != 1 or "master" in manifest.optimizer or manifest.loss_scaling is not None:
        return False
    if manifest.schedule is not None and schedule_of(manifest.schedule) is None:
        return False
    if not rounding_scales(step.train).isdisjoint(
        fed.name for fed in manifest.of_role("parameter")
    ):
        return False
    found = [OPTIMIZERS.get(str(o.get("name"))) for o in optimizers]
    return all(cls is not None and cls.elementwise for cls in found)


def gradient_graph(step: TrainingStep) -> Program:
    """Returns the step without its update: inputs are batch, parameters, running statistics and
    seed, outputs are loss, metrics, statistics and adjoints.
    """
    program = _copied(step.train)
    block, manifest = program.main, step.manifest
    moved = {fed.next for fed in manifest.running()}
    following = {fed.next for fed in manifest.inputs if fed.next not in moved}
    for v in [v for v in block.outputs if v.name in following]:
        block.remove_output(v)
    values = {v.name: v for v in block.vars()}
    for fed in manifest.of_role("parameter"):
        adjoint = values[fed.adjoint or ""]
        if adjoint.returned or adjoint.definition is None:
            with emitting(block):
                adjoint = op.Identity(adjoint)
        block.add_output(adjoint)
    kept = {fed.name for fed in [*manifest.of_role("batch", "seed"), *manifest.of_model()]}
    prune(block, lambda v: v.name in kept)
    return _copied(program)


def _copied(program: Program) -> Program:
    """Returns a copy of the program that finds the same external data."""
    return program_of(to_proto(program), program.folder, digests=program.digests)


class BlocksEngine(Engine):
    """onnxruntime computes the gradient on the CPU, NumPy applies the optimiser's formula."""

    def __init__(self, step: TrainingStep, *, threads: int | None = None) -> None:
        super().__init__(step)
        manifest = step.manifest
        self._schedule = None if manifest.schedule is None else schedule_of(manifest.schedule)
        graph = gradient_graph(step)
        self._session = open_session(graph, "cpu", threads)
        self._batch = manifest.of_role("batch")
        self._metrics = [*manifest.metrics, *([manifest.divisor] if manifest.divisor else [])]
        self._counted = {fed.name: 0.0 for fed in manifest.of_role("counted")}
        self._labels: float | None = None  # of the last batch
        self._parameters = manifest.of_role("parameter")
        outputs = graph.main.outputs
        self._adjoints = [v.name for v in outputs[-len(self._parameters) :]]
        loss = next(numpy_dtype(v.dtype) for v in outputs if v.name == manifest.loss)
        del graph, outputs
        self._states: dict[str, list[Fed]] = {}
        self._running = manifest.running()
        for fed in manifest.of_role("state", "average", "accumulated"):
            self._states.setdefault(slot_of(fed), []).append(fed)
        self._group = {fed.name: fed.group or 0 for fed in self._parameters}
        wide = {fed.name for fed in self._parameters if fed.shape}
        self._single = {
            slot
            for slot, feds in self._states.items()
            if any(f.shape == () and f.of in wide for f in feds)
        }
        self._loss = np.zeros((), loss)
        self._drawn = np.zeros((), np.int64)
        self._dtype = np.dtype(self._parameters[0].dtype)
        self._places, self._regions, self._size = laid_out(manifest)
        give_back(self._size)
        own = [slot for slot in self._states if slot not in self._single]
        self._p, self._g, *states = (aligned(self._size, self._dtype) for _ in range(2 + len(own)))
        self._s = dict(zip(own, states, strict=True))
        self._norm: Array | None = None
        self._replay = Replay(_BLOCK)
        self.put(step.initial)

    def put(self, values: Mapping[str, Array]) -> None:
        """Continues from these values."""
        for fed in self._parameters:
            safetensors_file.copy(values, fed.name, self._p[self._places[fed.name]])
        for slot, flat in self._s.items():
            for fed in self._states[slot]:
                safetensors_file.copy(values, fed.name, flat[self._places[fed.of or ""]])
        # one number for all parameters of a group
        self._shared = {
            (self._group[fed.of or ""], slot): values[fed.name][()]
            for slot in self._single
            for fed in self._states[slot]
        }
        self._counted = {name: float(values[name][()]) for name in self._counted}
        # running statistics: the current values, and the next ones that the graph writes
        self._statistics = {
            fed.name: (np.array(values[fed.name]), np.array(values[fed.name]))
            for fed in self._running
        }
        self._binding = self._bound()

    def _bound(self) -> Any:
        import onnxruntime as ort

        binding = self._session.io_binding()
        for fed, adjoint in zip(self._parameters, self._adjoints, strict=True):
            place, shape = self._places[fed.name], sizes_of(fed)
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
        for name in self._metrics:
            binding.bind_output(name, "cpu")
        return binding

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """Runs one step. Nothing changes if the loss is not finite. Raises InputError for an
        invalid batch.
        """
        self._drawn[...] = self.draw(number)
        metrics = self._differentiate(batch)
        self._labels = divisor_of(self.task.manifest, metrics)
        if np.isfinite(self._loss):
            self._update(number, rate)
            for now, moved in self._statistics.values():
                now[...] = moved
        return Result(float(self._loss), metrics | self._told)

    def _differentiate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Writes the loss and the gradient into their memory, and returns the metrics."""
        import onnxruntime as ort

        # the runtime reads this memory, so it lives until the run is over
        feeds = checked(batch, self._batch)
        for name, array in feeds.items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        with refusing(feeds, getattr(batch, "rows", None)):
            self._session.run_with_iobinding(self._binding)
        names = self._metrics  # they were bound last
        returned = self._binding.get_outputs()[-len(names) :] if names else []
        return {name: value.numpy() for name, value in zip(names, returned, strict=True)}

    def _update(self, number: int, rate: float) -> None:
        """Applies the optimisers' formulas in place, block by block. Before the last micro-batch,
        only add the gradients up. Nothing changes if the norm is not finite.
        """
        mean = None
        if "accumulated" in self._s:
            total = self._s["accumulated"]
            for name in self._counted:  # micro-batches count by their labels
                np.multiply(self._g, self._dtype.type(self._labels), out=self._g)
                self._counted[name] += self._labels or 0.0
                mean = 1 / (self._counted[name] or 1.0)
            np.add(total, self._g, out=total)
            if not self.last:
                return
            self._g[:] = total
            self.back()
        with np.errstate(all="ignore"):
            factor, norm = made_ready(self._g, self.task.manifest, mean)
        self._norm = None if norm is None else np.asarray(norm, self._dtype)
        if norm is not None and not np.isfinite(norm):
            return
        given: Any = self._dtype.type(rate)
        if self._schedule is not None:
            given = np.float64(self._schedule(number))
        dtype = helper.np_dtype_to_tensor_dtype(self._dtype)
        with np.errstate(all="ignore"):
            for region in self._regions:
                own = region.rule.rate(given, array_math)
                at = Moment(own, np.float64(number), array_math, dtype)
                self._update_region(region, factor, at)

    def _update_region(self, region: Region, factor: float, at: Moment) -> None:
        shared = {slot: v for (i, slot), v in self._shared.items() if i == region.group}
        slots = sorted(region.slots.difference(shared))
        arrays = {_WEIGHT: self._p, _GRADIENT: self._g, **{slot: self._s[slot] for slot in slots}}
        if "average" in self._s:
            arrays["average"] = self._s["average"]

        def formula(held: dict[str, Any]) -> dict[str, Any]:
            p, g = held.pop(_WEIGHT), held.pop(_GRADIENT)
            average = held.pop("average", None)
            g = g if factor == 1 else g * self._dtype.type(factor)
            new, after, moved = region.rule.update(p, g, held | shared, average, at)
            return {_WEIGHT: new, **after, **({} if average is None else {"average": moved})}

        numbers = self._replay.update(formula, arrays, region.part)
        self._shared |= {(region.group, slot): numbers[slot] for slot in shared}

    @property
    def _told(self) -> dict[str, Array]:
        """The norm of the last step's gradients, if the step has that output."""
        name = self.task.manifest.gradient_norm
        if name is None or self._norm is None or not self.last:
            return {}
        return {name: self._norm}

    def back(self) -> None:
        """Starts the sums over micro-batches again; a step whose loss or norm is not finite has
        changed nothing else.
        """
        if "accumulated" in self._s:
            self._s["accumulated"][:] = 0
        self._counted = dict.fromkeys(self._counted, 0.0)

    @property
    def held(self) -> dict[str, Array]:
        """Returns the current parameters and states in their buffers."""
        found = {fed.name: self._part(self._p, fed.name, fed) for fed in self._parameters}
        for slot, feds in self._states.items():
            for fed in feds:
                single = slot in self._single
                found[fed.name] = (
                    np.array(self._shared[self._group[fed.of or ""], slot])
                    if single
                    else self._part(self._s[slot], fed.of or "", fed)
                )
        found |= {name: np.asarray(n, self._dtype) for name, n in self._counted.items()}
        return found | {name: now for name, (now, _) in self._statistics.items()}

    def _part(self, flat: Array, name: str, fed: Fed) -> Array:
        return flat[self._places[name]].reshape(sizes_of(fed))
