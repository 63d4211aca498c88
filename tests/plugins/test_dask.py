"""`onnxgrad ci --dask` on a cluster of two workers on this machine; needs the extra `dask`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.__main__ import main
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci.plan import plan_of
from onnxgrad.jobs.ci.work import Job, Setup
from onnxgrad.jobs.ci.workers import each
from onnxgrad.jobs.recipe import parse
from onnxgrad.plugins.dask import each_on
from tests.cli.conftest import BRANCHES
from tests.helpers import parse as model_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
RECIPE: dict[str, Any] = {"ci": {"models": ["*.onnx"], "out": "build"}}
# counts how often it is run, and ends its process as long as that is up to `most`
KILLER = """
import os, pathlib, signal
begun = pathlib.Path({begun!r})
with begun.open("a") as file:
    file.write("x")
if len(begun.read_text()) <= {most}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as made:
        yield made.scheduler_address


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Four models, the second of which cannot be read."""
    for name in "abcd":
        onnx.save(model_of(BRANCHES), tmp_path / f"{name}.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    (tmp_path / "build").mkdir()
    return list(plan_of(parse(RECIPE, str(tmp_path / "onnxgrad.toml"))).jobs)


def told(found: dict[int, Any]) -> list[Any]:
    """Everything of the outcomes but how long they took."""
    for one in found.values():
        one.seconds = 0.0
    return [found[i].to_dict() | {"proof": None} for i in sorted(found)]


def made(jobs: list[Job]) -> list[bytes | None]:
    """The files written, which go."""
    paths = [Path(job.output or "") for job in jobs]
    found = [path.read_bytes() if path.exists() else None for path in paths]
    for path in paths:
        path.unlink(missing_ok=True)
    return found


def test_the_same_bytes_as_alone(cluster: str, jobs: list[Job]) -> None:
    alone = told(dict(each(jobs, 1))), made(jobs)
    assert [status["status"] for status in alone[0]] == ["passed", "error", "passed", "passed"]
    assert (told(dict(each_on(cluster, jobs))), made(jobs)) == alone


@pytest.mark.parametrize(("most", "status"), [(1, "passed"), (99, "error")])
def test_a_killed_workers_model_is_tried_again_once(
    cluster: str, jobs: list[Job], tmp_path: Path, most: int, status: str
) -> None:
    begun, plugin = tmp_path / "begun", tmp_path / "killer.py"
    plugin.write_text(KILLER.format(begun=str(begun), most=most))
    jobs[2] = replace(jobs[2], setup=Setup((str(plugin),)))
    found = dict(each_on(cluster, jobs))
    assert len(begun.read_text()) == 2
    assert [found[i].status for i in range(4)] == ["passed", "error", status, "passed"]
    if status == "error":
        assert found[2].error.startswith("the process that worked on it died with its Dask worker")
        assert found[2].exit_code == 3
    written = made(jobs)
    assert [data is not None for data in written] == [True, False, status == "passed", True]
    assert {p.suffix for p in tmp_path.rglob("*") if "part" in p.name} == set(), "half a file"


def test_the_command(
    cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        onnx.save(model_of(BRANCHES), tmp_path / f"{name}.onnx")
    (tmp_path / "onnxgrad.toml").write_text('[ci]\nmodels = ["*.onnx"]\nout = "build"\n')
    assert main(["ci", "--update"]) == 0
    lock = (tmp_path / "onnxgrad.lock.json").read_bytes()
    capsys.readouterr()
    assert main(["ci", "--dask", cluster, "--update"]) == 0
    assert "accepted: 2 models\n2 passed" in capsys.readouterr().out
    assert (tmp_path / "onnxgrad.lock.json").read_bytes() == lock
    assert main(["ci", "--dask", cluster, "--jobs", "2"]) == 2
    assert (
        "--jobs does not apply with --dask: the cluster has its own workers"
        in capsys.readouterr().err
    )


def test_workers_that_see_other_files_are_refused(cluster: str, jobs: list[Job]) -> None:
    elsewhere = replace(jobs[0], path="/elsewhere/a.onnx")
    with pytest.raises(InputError, match=r"the worker tcp://.* does not see /elsewhere/a\.onnx"):
        list(each_on(cluster, [elsewhere]))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "what is this"])
def test_no_scheduler(address: str, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("onnxgrad.plugins.dask._CONNECTING", 1.0)
    with pytest.raises(InputError, match=f"^dask: no scheduler answers at {address}: "):
        list(each_on(address, jobs))
