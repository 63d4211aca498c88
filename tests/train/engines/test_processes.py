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
    """A communicator that remembers how it was ended, and what it was given."""

    rank: int = 0
    size: int = 2
    ended: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def Abort(self, code: int) -> None:
        self.ended.append(code)

    def Bcast(self, part: Any, root: int) -> None:
        self.sent.append(len(part))


@pytest.fixture(autouse=True)
def no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI's own words go nowhere; the test's stay."""
    monkeypatch.setattr(processes, "_FIRST", 0.0)
    monkeypatch.setattr("onnxgrad.train.engines.processes.os.dup2", lambda *_: None)


@pytest.mark.parametrize(
    ("rank", "error", "code", "line"),
    [
        (0, InputError("no such file"), 2, "no such file"),
        (1, InputError("no such file"), 2, "rank 1 of 2: no such file"),
        (1, NotProved("no"), 1, "rank 1 of 2: no"),
        (0, KeyError("a"), 3, "KeyError: 'a'"),
    ],
)
def test_an_error_ends_all_with_one_line(rank: int, error: Exception, code: int, line: str) -> None:
    comm, said = Comm(rank), list[str]()
    with Ranks(comm).together(said.append):
        raise error
    assert (comm.ended, said) == ([code], [line])


def test_one_process_raises_as_ever() -> None:
    comm = Comm(size=1)
    with pytest.raises(InputError), Ranks(comm).together():
        raise InputError("no")
    assert comm.ended == []


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
