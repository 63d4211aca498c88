"""Weights in external files stay there: the runtime maps them, and no copy of a model holds them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import Trainer, training_step
from onnxgrad.errors import InputError
from onnxgrad.train import features
from scripts.bench_training_memory import write_table
from tests.helpers import ROOT, parse

TRAIN = """
import onnx, onnxruntime, numpy as np, resource, onnxgrad
from onnxgrad import Trainer, training_step
def peak():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) >> 10
onnxgrad.train, onnxgrad.diff
before, data = peak(), dict(np.load("data.npz"))
own = Trainer(training_step("model.onnx", "cross_entropy", "adamw{lr=1e-4}", "w,b"), threads=1)
losses = own.fit(data, epochs=3, validation=data, folder="run").losses
print(peak() - before, losses[0], losses[-1])
"""


@pytest.mark.parametrize("rows", [50_000, pytest.param(550_000, marks=pytest.mark.slow)])
def test_a_frozen_table_stays_in_its_file(tmp_path: Path, rows: int) -> None:
    """200 MB, and 2.2 GB, which no protobuf holds; its peak was 4.4 GB before."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak is read from /proc")
    write_table(tmp_path, rows)
    place: Any = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT), "PATH": ""}}
    command = [sys.executable, "-c", TRAIN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **place)
    grown, first, last = map(float, done.stdout.split())
    assert grown < 100 and last < first


def test_a_table_that_is_cut_off_is_named(tmp_path: Path) -> None:
    write_table(tmp_path, 50)
    task = training_step(tmp_path / "model.onnx", "cross_entropy", wrt=["w", "b"])
    (tmp_path / "table.data").write_bytes(bytes(1000))
    with pytest.raises(InputError, match="external data of initializer 'table' cannot be read"):
        Trainer(task, threads=1)


@pytest.mark.slow
def test_the_peaks_of_the_record(tmp_path: Path) -> None:
    """Over the imports: 1.1 times what must be there, and saving takes 1.05 times training."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak is read from /proc")
    command = "import json, bench_training_memory as b; print(json.dumps(b.rows(134, 800)))"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT / "scripts", capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert [name for name, megabytes, bound in found if megabytes > bound] == []


@pytest.mark.parametrize("engine", ["blocks", "graph"])
def test_an_index_that_a_table_lacks_is_named_by_its_row(engine: Any) -> None:
    """As a wrong label is; it was an internal error, beside a line of the runtime's own."""
    model = parse("""g (int64[N, 2] x) => (float[N, 3] y, float[N, 3] m)
        { e = Gather (table, x)  m = ReduceMean <keepdims = 0> (e, axis)  y = MatMul (m, w) }""")
    for name, shape in (("table", (5, 3)), ("w", (3, 3))):
        value = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
    good = {"x": np.arange(32).reshape(16, 2) % 5, "labels": np.arange(16) % 3}
    bad = {**good, "x": np.array(good["x"])}
    bad["x"][11, 1] = 7
    own = Trainer(training_step(model, "cross_entropy{output=y}"), engine=engine, threads=1)
    of_data = r"this batch: Gather '.*': .*idx=7 .*: 'x' of the data is 7 at \[11, 1\]$"
    runs: list[Any] = [
        lambda: own.fit(bad, batch_size=4),
        lambda: own.evaluate(bad, batch_size=4),
        lambda: own.predict(bad, batch_size=4),
        lambda: features(model, "m", bad, batch_size=4),
    ]
    for run in runs:
        with pytest.raises(InputError, match=of_data):
            run()
    with pytest.raises(InputError, match=r"'x' of the batch is 7 at \[3, 1\]$"):
        own.step({name: a[8:12] for name, a in bad.items()})
    own.fit(good)
