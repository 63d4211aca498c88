"""Several processes train as one does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import Adam, Trainer, training_step
from onnxgrad.train.engines.base import seed_of
from onnxgrad.train.optimizers import Adafactor
from onnxgrad.train.run_folder import CHECKPOINT
from tests.helpers import ROOT, stored_arrays
from tests.train.common import examples, step, write_model
from tests.train.parallel_runs import CASES, dropping, losses

pytest.importorskip("mpi4py", reason="MPI needs mpi4py, which the extra `mpi` brings")
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPIEXEC is None, reason="MPI needs mpiexec, which the extra `mpi` brings"),
]


def run(name: str, folder: Path, count: int = 2) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(MPIEXEC), "-n", str(count), sys.executable, "-m", "tests.train.parallel_runs", name, str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("count", [2, 3])
def test_the_curve_of_one_process(tmp_path: Path, count: int) -> None:
    done = run("every case", tmp_path, count)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(CASES)
    for name, curve in found.items():
        np.testing.assert_allclose(curve, losses(name, parallel=False), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("raise", 3, "rank 1 of 2: ValueError: no disk"),
        ("nan", 1, "step 6: the loss is nan; 'x' of the batch is nan at ["),
        ("label", 2, "rank 1 of 2: 'labels' of the batch has the label 7"),
    ],
)
def test_a_failing_rank_ends_all_with_one_line(
    tmp_path: Path, kind: str, code: int, words: str
) -> None:
    done = run(kind, tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert json.loads(safetensors_file.read(tmp_path / CHECKPOINT)[1]["progress"])["steps"] == 4
    assert list(tmp_path.iterdir()) == [tmp_path / CHECKPOINT]


def test_a_killed_rank_ends_all(tmp_path: Path) -> None:
    assert run("kill", tmp_path).returncode != 0
    assert json.loads(safetensors_file.read(tmp_path / CHECKPOINT)[1]["progress"])["steps"] == 4


def test_the_leader_saves_and_logs_and_a_run_goes_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    assert run("whole", one).returncode == 0
    assert [json.loads(line)["step"] for line in (one / "log").read_text().splitlines()] == [
        *range(1, 21)
    ]
    assert len(json.loads(run("first half", two).stdout)) == 9
    assert run("whole", two).returncode == 0
    assert (one / CHECKPOINT).read_bytes() == (two / CHECKPOINT).read_bytes()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("function", 'declare it, as in Custom(f, over_batch="mean")'),
        (
            "two means",
            "'labels' has labels that are ignored or have weights, and the loss has other terms",
        ),
        ("other step", "the processes have different training steps"),
    ],
)
def test_what_would_be_another_training_is_refused(tmp_path: Path, name: str, words: str) -> None:
    done = run(name, tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path)
    data = examples(100)
    np.savez(tmp_path / "data.npz", **data)
    np.savez(tmp_path / "wrong.npz", x=data["x"])
    return tmp_path


def command(folder: Path, *words: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    words = (
        "fit",
        "model.onnx",
        "--loss",
        "cross_entropy",
        "--optimizer",
        "sgd",
        "--threads",
        "1",
        *words,
    )
    start = [str(MPIEXEC), "-n", str(count)] if count > 1 else []
    return subprocess.run(
        [*start, sys.executable, "-m", "onnxgrad", *words], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_command_line(folder: Path) -> None:
    words = ["--data", "data.npz", "--epochs", "5", "-o", "out.onnx", "--log", "log"]
    done = command(folder, "--data-parallel", *words)
    assert done.returncode == 0 and done.stdout.count("model.onnx") == 1, done.stderr
    alone = command(folder, "--data", "data.npz", "--epochs", "5", "--log", "alone", count=1)
    assert alone.returncode == 0, alone.stderr
    curves = [
        [json.loads(line)["loss"] for line in (folder / name).read_text().splitlines()]
        for name in ("log", "alone")
    ]
    assert len(curves[0]) == 20
    np.testing.assert_allclose(*curves, rtol=1e-5)
    assert "onnxgrad.trained" in {e.key for e in onnx.load(folder / "out.onnx").metadata_props}


def test_the_leader_alone_reads_the_best_weights(folder: Path) -> None:
    """While the others wait for it at the end."""
    words = ["--data", "data.npz", "--validation", "data.npz", "--epochs", "4", "--rate", "30"]
    words += ["--keep", "best", "--folder", "run", "--predict", "data.npz=p.npz", "-o", "out.onnx"]
    done = command(folder, "--data-parallel", *words)
    assert done.returncode == 0, done.stderr
    progress = json.loads(safetensors_file.read(folder / "run" / CHECKPOINT)[1]["progress"])
    assert progress["best_step"] < progress["steps"]  # so that they are read from their file
    trained = {e.key: e.value for e in onnx.load(folder / "out.onnx").metadata_props}
    assert json.loads(trained["onnxgrad.trained"])["steps"] == progress["best_step"]
    assert len(stored_arrays(folder / "p.npz")["logits"]) == 100


@pytest.mark.parametrize(
    "words", [["--data", "wrong.npz"], ["--data", "data.npz", "--loss", "mse"]]
)
def test_what_all_processes_find_wrong_is_said_once(folder: Path, words: list[str]) -> None:
    done = command(folder, "--data-parallel", *words)
    assert done.returncode != 0  # mpiexec joins the codes of all processes, the killed ones' too
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("onnxgrad: "), done.stderr


def test_one_process_is_the_ordinary_engine(tmp_path: Path) -> None:
    assert losses("sgd", parallel=True) == losses("sgd", parallel=False)


MODES = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 3] x) => (float[N, 3] y) {
  h = Mul (x, w)
  n = BatchNormalization (h, one, zero, mean, var)
  y = Dropout (n)
}"""


def test_a_mode_that_looks_at_the_whole_batch() -> None:
    model = onnx.parser.parse_model(MODES)
    for name, value in {"w": 2.0, "one": 1.0, "zero": 0.0, "mean": 0.5, "var": 2.0}.items():
        tensor = onnx.numpy_helper.from_array(np.full(3, value, np.float32), name)
        model.graph.initializer.append(tensor)
    made = training_step(model, "mse", Adam(), "w", batch_norm="train")
    with pytest.raises(InputError, match="batch_norm"):
        Trainer(made, data_parallel=True)


def test_dropout_draws_for_each_part_by_itself(tmp_path: Path) -> None:
    """SGD over two parts is the mean of two SGD steps, each with the seed of its part."""
    done = run("dropout", tmp_path)
    assert done.returncode == 0, done.stderr
    engine = Trainer(dropping(), 0.1, threads=1, engine="blocks")._engine
    values, expected, seeds = engine.values, [], []
    for number in range(4):
        after = []
        for rank in (0, 1):
            engine.put(values)
            seeds.append(seed_of(3, 2 * number + rank + 1))
            engine.draw = lambda _: seeds[-1]  # type: ignore[method-assign]
            part = {k: a[4 * rank : 4 * rank + 4] for k, a in examples(8, number).items()}
            after.append((engine.run(part, number + 1, 0.1).loss, engine.values))
        expected.append((after[0][0] + after[1][0]) / 2)
        values = {k: (after[0][1][k] + after[1][1][k]) / 2 for k in values}
    assert len(set(seeds)) == 8
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=1e-5)
    assert json.loads(run("dropout", tmp_path).stdout) == json.loads(done.stdout)


def test_steps_that_need_one_process() -> None:
    with pytest.raises(InputError, match="data_parallel runs on the CPU"):
        Trainer(step(Adafactor()), data_parallel=True)
    with pytest.raises(InputError, match="leave out engine"):
        Trainer(step(Adam()), engine="graph", data_parallel=True)
