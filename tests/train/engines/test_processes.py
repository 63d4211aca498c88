"""How processes speak and end, with a stand-in for MPI; the real one runs in test_data_parallel."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError, NotProved
from onnxgrad.train import Trainer
from onnxgrad.train.engines import processes
from onnxgrad.train.engines.processes import Ranks, world
from tests.train.common import step


@dataclass
class Comm:
    """A communicator that remembers what it was given; `others` are the codes of ranks that
    failed.
    """

    rank: int = 0
    size: int = 3
    others: dict[int, int] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)

    def allgather(self, value: int) -> list[int]:
        return [self.others.get(i, value if i == self.rank else 0) for i in range(self.size)]

    def Bcast(self, part: Any, root: int) -> None:
        self.sent.append(len(part))


@pytest.mark.parametrize(
    ("rank", "error", "code", "line"),
    [
        (0, InputError("no such file"), 2, "no such file"),
        (1, InputError("no such file"), 2, "rank 1 of 3: no such file"),
        (1, NotProved("no"), 1, "rank 1 of 3: no"),
        (0, KeyError("a"), 3, "KeyError: 'a'"),
    ],
)
def test_an_error_ends_all_with_one_line(rank: int, error: Exception, code: int, line: str) -> None:
    said = list[str]()
    with pytest.raises(SystemExit) as ended, Ranks(Comm(rank)).together(said.append):
        raise error
    assert (ended.value.code, said) == (code, [line])


@pytest.mark.parametrize("fails", [True, False])
def test_the_first_rank_that_failed_reports(fails: bool) -> None:
    """The others exit with its code at their next meeting, whether they failed or not."""
    comm, said = Comm(1, others={0: 3, 2: 1}), list[str]()
    with pytest.raises(SystemExit) as ended, Ranks(comm).together(said.append):
        if fails:
            raise InputError("alike")
        Ranks(comm).spread(np.zeros(2))
    assert (ended.value.code, said, comm.sent) == (3, [], [])
    with pytest.raises(SystemExit), Ranks(comm).together(said.append):
        pass  # a rank that is done waits for those that are not


def test_one_process_raises_as_ever() -> None:
    comm = Comm(size=1)
    with pytest.raises(InputError), Ranks(comm).together():
        raise InputError("no")
    with Ranks(comm).together():
        pass


def test_large_arrays_go_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_BUCKET", 64)
    comm = Comm()
    Ranks(comm).spread(np.zeros((5, 7), np.float32))
    assert comm.sent == [16, 16, 3]


def test_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InputError, match="MPI is missing: pip install mpi4py mpich"):
        world()
    with pytest.raises(InputError, match="MPI is missing"):
        Trainer(step(), data_parallel=True)
