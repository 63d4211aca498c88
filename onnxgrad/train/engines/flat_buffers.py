"""Flat buffers with one region per parameter group, and gradients that are averaged and clipped in
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train import array_math
from onnxgrad.train.engines.session import sizes_of
from onnxgrad.train.manifest import Fed, Manifest
from onnxgrad.train.optimizers import OPTIMIZERS, Optimizer
from onnxgrad.train.update.clipping import averaged_and_clipped
from onnxgrad.train.update.moving_average import WeightUpdate, average_of

# each tensor begins at a multiple of this, in numbers: a cache line of float32
_ALIGNED = 16
_LINE = 64
# numbers per sum of squares, which are added up in float64
_BLOCK = 1 << 14


def aligned(length: int, dtype: np.dtype[Any]) -> Array:
    """Returns zeros that begin at a cache line, so that each tensor in a flat buffer does, too."""
    memory = np.zeros(length * dtype.itemsize + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + length * dtype.itemsize].view(dtype)


@dataclass(frozen=True)
class Region:
    """The part of the flat buffers that one rule updates. group: the index of the parameters'
    group. slots: the optimiser's states.
    """

    part: slice
    group: int
    rule: WeightUpdate
    slots: frozenset[str]


def optimizer_of(entry: Mapping[str, Any]) -> Optimizer:
    """Returns the optimiser of a manifest's entry. Raises InputError for an unknown name."""
    given = dict(entry)
    name = given.pop("name", None)
    if name not in OPTIMIZERS:
        raise InputError(f"the step's optimiser '{name}' is not one of {', '.join(OPTIMIZERS)}")
    lists = {k: tuple(v) for k, v in given.items() if isinstance(v, list)}
    return OPTIMIZERS[name](**{**given, **lists})


def slot_of(fed: Fed) -> str:
    """Returns the name of a state in its optimiser."""
    return fed.slot or fed.name.removeprefix(f"{fed.of}.")


def laid_out(manifest: Manifest) -> tuple[dict[str, slice], list[Region], int]:
    """Returns the slice of each parameter, group by group, the regions of the groups that have
    parameters, and the length of the buffers.
    """
    entries = manifest.groups or ({"optimizer": manifest.optimizer},)
    average = average_of(manifest.average)
    places: dict[str, slice] = {}
    regions = []
    end = 0
    for index, group in enumerate(entries):
        start = end
        members = [f for f in manifest.of_role("parameter") if (f.group or 0) == index]
        if not members:  # groups before it have all parameters
            continue
        for fed in members:
            length = math.prod(sizes_of(fed))
            places[fed.name] = slice(end, end + length)
            end += -(-length // _ALIGNED) * _ALIGNED
        names = {fed.name for fed in members}
        slots = frozenset(slot_of(f) for f in manifest.of_role("state") if f.of in names)
        optimizer, factor = optimizer_of(group["optimizer"]), float(group.get("factor", 1.0))
        rule = WeightUpdate(optimizer, factor, average)
        regions.append(Region(slice(start, end), index, rule, slots))
    return places, regions, end


def made_ready(g: Array, manifest: Manifest, mean: float | None) -> tuple[float, Any]:
    """Clips the flat gradient, the sum over micro-batches, by value in place. Returns its remaining
    factor, and the norm of its mean before clipping if the step returns the norm. mean: as for
    `averaged_and_clipped`.
    """
    wanted = manifest.gradient_norm is not None
    (clipped,), factor, norm = averaged_and_clipped(
        [g],
        manifest,
        norm=wanted,
        norm_of=_norm,
        scaled=_scaled_in_place,
        math=array_math,
        mean=mean,
    )
    if clipped is not g:
        g[:] = clipped
    return 1.0 if factor is None else float(factor), norm


def _norm(gs: Sequence[Array]) -> Any:
    parts: list[Any] = [g[i : i + _BLOCK] for g in gs for i in range(0, len(g), _BLOCK)]
    return np.sqrt(np.float64(sum(float(np.dot(part, part)) for part in parts)))


def _scaled_in_place(g: Array, factor: float) -> Array:
    return np.multiply(g, g.dtype.type(factor), out=g)
