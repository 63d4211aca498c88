"""The processes of one MPI run: the leader, collective operations, and a common end after
errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from onnxgrad.errors import InputError, InternalError, OnnxgradError
from onnxgrad.ir.types import Array
from onnxgrad.wording import install, one_line, printable

T = TypeVar("T")
# bytes of one Allreduce: large enough that its start-up does not count, small enough for MPI's
# 32-bit counts
_BUCKET = 1 << 24


@dataclass(frozen=True)
class Ranks:
    """The processes that train together; `comm` is mpi4py's communicator, whose objects have no
    static types.

    Without mpiexec there is only one.
    """

    comm: Any

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self.comm.size)

    @property
    def rank(self) -> int:
        """The index of this rank, from 0."""
        return int(self.comm.rank)

    @property
    def leads(self) -> bool:
        """Whether this rank logs, saves and prints."""
        return self.rank == 0

    @property
    def on_this_machine(self) -> int:
        """Returns the number of ranks that share this machine's cores. All ranks must call it."""
        from mpi4py import MPI

        self._meet()
        return int(self.comm.Split_type(MPI.COMM_TYPE_SHARED).size)

    def agree(self, value: T) -> T:
        """Returns the leader's value, on every rank. All ranks must call it."""
        self._meet()
        found: T = self.comm.bcast(value, root=0)
        return found

    def all(self, value: T) -> list[T]:
        """Returns every rank's value, in order. All ranks must call it."""
        self._meet()
        return list(self.comm.allgather(value))

    def spread(self, array: Array) -> None:
        """Copies the leader's numbers into the array of every rank."""
        self._meet()
        for part in _buckets(array):
            self.comm.Bcast(part, root=0)

    def add(self, array: Array) -> None:
        """Replaces the array on every rank by the sum over the ranks."""
        from mpi4py import MPI

        self._meet()
        for part in _buckets(array):
            self.comm.Allreduce(MPI.IN_PLACE, part, op=MPI.SUM)

    @contextmanager
    def together(self, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Returns a context in which an error on any rank ends all ranks, with one line and the
        error's exit code.

        The line goes to `say`, by default to stderr. With one process, the error is raised as
        usual. A rank that fails goes to the next meeting of all ranks, which comes before each
        collective operation and at the end of the context: all must enter and leave it.
        """
        try:
            yield
        except Exception as error:  # whatever it is, the other ranks wait for this one
            if self.size == 1:
                raise
            self._meet(error, say)
        else:
            self._meet()

    def _meet(
        self, error: Exception | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Waits for all ranks. If some of them failed, the first of these reports its error, and
        all exit with its code.
        """
        if self.size == 1:
            return
        codes = self.comm.allgather(0 if error is None else _code(error))
        first = next((rank for rank, code in enumerate(codes) if code), None)
        if first is None:
            return
        if error is not None and first == self.rank:
            (say or _to_stderr)(self._words(error))
        raise SystemExit(codes[first])

    def _words(self, error: Exception) -> str:
        """Returns the error's message, with the rank unless every rank can have the error."""
        foreseen = isinstance(error, OnnxgradError) and not isinstance(error, InternalError)
        what = str(error) if foreseen else f"{type(error).__name__}: {error}"
        return what if self.leads else f"rank {self.rank} of {self.size}: {what}"


def world() -> Ranks:
    """Returns the processes that mpiexec started. Raises InputError without mpi4py or an MPI
    library.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"MPI is missing: {install('mpi')}, which brings mpi4py and mpiexec "
            f"({str(error).splitlines()[0]})"
        ) from None
    return Ranks(MPI.COMM_WORLD)


def _buckets(array: Array) -> Iterator[Array]:
    flat: Array = array.reshape(-1)
    if not np.shares_memory(flat, array):
        raise InternalError("ranks exchange contiguous arrays only")
    step = max(1, _BUCKET // flat.itemsize)
    for start in range(0, len(flat), step):
        yield flat[start : start + step]


def _to_stderr(words: str) -> None:
    print(f"onnxgrad: {printable(one_line(words))}", file=sys.stderr)


def _code(error: Exception) -> int:
    return error.exit_code if isinstance(error, OnnxgradError) else InternalError.exit_code
