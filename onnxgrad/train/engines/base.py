"""What runs training steps: values live in it from step to step, batches go in, losses come out."""

from __future__ import annotations

import ctypes
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_bytes
from onnxgrad.ir.types import Array
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep
from onnxgrad.verify.running.libraries import register
from onnxgrad.verify.running.onnxruntime_sessions import preload
from onnxgrad.verify.running.session import (
    PROVIDER_OPTIONS,
    RuntimeMissing,
    cannot_preload,
    how_to_get,
)
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import NO_ONNXRUNTIME

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """What one step returned."""

    loss: float
    metrics: Mapping[str, Array]


class Engine(ABC):
    """Parameters and states of one training step, and the way to the next.

    part: which of the micro-batches that make a step `run` is given next, from 0 on; after the last
    one parameters are updated.
    seed: of the run; a batch draws by `seed_of` it and the batch's number. spoiled: states were
    written over by a step that was then undone, so that training cannot go on before a `put`.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.task = step
        self.part = 0
        self.seed = 0
        self.spoiled = False

    @abstractmethod
    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """One step, or micro-batch of it, from the values held, which it replaces. `number` is the
        step's, from 1 on.
        """

    @abstractmethod
    def back(self) -> None:
        """Undo the last step's parameters; its states may be lost, and sums over micro-batches
        begin anew.
        """

    @property
    @abstractmethod
    def values(self) -> dict[str, Array]:
        """Copies of the parameters and states as they are now, by the names of their inputs."""

    @abstractmethod
    def put(self, values: Mapping[str, Array]) -> None:
        """Go on from these values."""

    @property
    def last(self) -> bool:
        """Whether the present micro-batch is the step's last one."""
        return self.part == self.task.manifest.accumulate - 1

    def draw(self, number: int) -> int:
        """What the present batch of that step draws by."""
        batches = (number - 1) * self.task.manifest.accumulate + self.part + 1
        return seed_of(self.seed, batches)

    # of several processes that train together one leads; most engines are one process

    @property
    def leads(self) -> bool:
        """Whether this process logs and saves."""
        return True

    def agree(self, value: T) -> T:
        """The leader's value; all processes call it."""
        return value

    def together(self) -> AbstractContextManager[None]:
        """Inside of it, an error of one process ends all."""
        return nullcontext()


def ending_together(method: Callable[P, T]) -> Callable[P, T]:
    """Inside of a trainer's method, an error of one process ends all that train together."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        trainer: Any = args[0]
        with trainer._engine.together():
            return method(*args, **kwargs)

    return called


def seed_of(run: int, number: int) -> int:
    """The seed of the batch of that number: another one for each pair. Raises InputError for a
    run's seed out of range.
    """
    if not 0 <= run < 1 << 31:
        raise InputError(f"the seed must be from 0 to 2^31 - 1, not {run}")
    return (run << 32) + number


def open_session(program: Program, provider: str, threads: int | None) -> Any:
    """An onnxruntime session in this process. Raises RuntimeMissing, and InputError for a
    provider that is unknown, missing, or does not start.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise RuntimeMissing(NO_ONNXRUNTIME) from None
    if provider not in PROVIDERS:
        raise InputError(f"unknown provider '{provider}': choose one of {', '.join(PROVIDERS)}")
    name, available = PROVIDERS[provider], ort.get_available_providers()
    if name not in available:
        raise InputError(how_to_get(name, available))
    if provider != "cpu":
        try:
            preload(ort)
        except Exception as error:  # the loader's own class
            raise cannot_preload(" ".join(str(error).split())) from error
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # a planned block of memory comes beside what the first run took: half as much again, no faster
    options.enable_mem_pattern = False
    if threads is not None:
        options.intra_op_num_threads = threads
    register(options)
    wanted: list[Any] = [(name, PROVIDER_OPTIONS[provider])]
    if provider != "cpu":
        wanted.append(PROVIDERS["cpu"])
    session = ort.InferenceSession(to_bytes(program), options, wanted, enable_fallback=0)
    if name not in session.get_providers():  # onnxruntime goes on without it
        raise InputError(how_to_get(name, session.get_providers()))
    return session


def give_back() -> None:
    """Hand the memory that building a graph took back to the system: its objects refer to each
    other, so that only the collector frees them, and malloc keeps what is freed.
    """
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)


def checked(batch: Mapping[str, Any], inputs: list[Fed]) -> dict[str, Array]:
    """A batch as arrays that the graph takes. Raises InputError that names what is missing,
    unknown or does not fit.
    """
    unknown = [name for name in batch if name not in {fed.name for fed in inputs}]
    if unknown:
        raise InputError(
            f"the batch has '{unknown[0]}', which is no input: it takes {_listed(inputs)}"
        )
    found: dict[str, Array] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for fed in inputs:
        if fed.name not in batch:
            raise InputError(f"the batch lacks '{fed.name}': it takes {_listed(inputs)}")
        found[fed.name] = _fitting(np.asarray(batch[fed.name]), fed, sizes)
    return found


def _fitting(array: Array, fed: Fed, sizes: dict[str, tuple[int, str]]) -> Array:
    wanted = dtype_of(fed)
    if array.dtype != wanted:
        if array.dtype.kind != wanted.kind or not np.can_cast(array.dtype, wanted, "same_kind"):
            raise InputError(
                f"'{fed.name}' of the batch is {array.dtype}, the step takes {fed.dtype}"
            )
        array = array.astype(wanted)
    shape = fed.shape
    if shape is not None:
        fits = len(shape) == array.ndim and all(
            not isinstance(d, int) or d == n for d, n in zip(shape, array.shape)
        )
        if not fits:
            raise InputError(
                f"'{fed.name}' of the batch has shape {list(array.shape)}, the step "
                f"takes {list(shape)}"
            )
        for d, n in zip(shape, array.shape):
            if isinstance(d, str) and sizes.setdefault(d, (n, fed.name))[0] != n:
                raise InputError(
                    f"'{fed.name}' has {n} for {d}, '{sizes[d][1]}' of the same batch {sizes[d][0]}"
                )
    if array.size == 0:
        raise InputError(f"'{fed.name}' of the batch is empty, of shape {list(array.shape)}")
    if fed.classes is not None:
        _check_labels(array, fed, fed.classes)
    return np.require(array, requirements="C")


def _check_labels(array: Any, fed: Fed, classes: int) -> None:
    """Raise InputError that names the first label that is no class."""
    wrong = (array < 0) | (array >= classes)
    if fed.ignored is not None:
        wrong &= array != fed.ignored
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"'{fed.name}' of the batch has the label {array[tuple(place)]} at {place}: labels are "
            f"0 to {classes - 1}"
            + (f", or {fed.ignored}, which is ignored" if fed.ignored is not None else "")
        )


def dtype_of(fed: Fed) -> np.dtype[Any]:
    """The numpy dtype of an input."""
    return np.dtype(fed.dtype)  # bfloat16 and its like are numpy's since onnx was imported


def sizes_of(fed: Fed) -> tuple[int, ...]:
    """A parameter's or state's shape, all of whose sizes are known."""
    return tuple(d for d in fed.shape or () if isinstance(d, int))


def _listed(inputs: list[Fed]) -> str:
    return ", ".join(
        f"{fed.name}: {fed.dtype}{list(fed.shape) if fed.shape is not None else ''}"
        for fed in inputs
    )
