"""One deadline and one bound on memory for all work on a model, in Python and on the command line."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.limits import LimitReached, bounded, current, default_memory, limited, read_size
from onnxgrad.verify.running.process_limits import bounding_us
from tests.cli.conftest import BRANCHES
from tests.helpers import ROOT, parse

# onnxruntime needs hours for it
ENDLESS = """
g (float[300, 300] x) => (float[300, 300] y) <int64 n = {1000000000}, bool go = {1}> {
  y = Loop(n, go, x) <body = b (int64 i, bool c, float[300, 300] s) => (bool d, float[300, 300] t)
    { d = Identity(c) t = MatMul(s, s) }>
}
"""


def command(*words: object, folder: Path, ulimit: int = 0) -> tuple[int, str, float]:
    """(exit code, stdout and stderr, seconds) of the command line in a process of its own, with `ulimit` KiB of address space."""
    limit = f"ulimit -v {ulimit}; " if ulimit else ""
    words = (sys.executable, "-m", "onnxgrad", *words)
    shell = limit + "exec " + " ".join(f"'{word}'" for word in words)
    started = time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, cwd=folder, env=env, timeout=100
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - started


def saved(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    onnx.save(model, folder / name)
    return folder / name


def test_the_stricter_limits_hold_inside_others() -> None:
    assert current().deadline == float("inf") and current().memory == default_memory()
    with limited(50, "2GB"):
        with limited(None, None) as inner:
            assert inner.seconds == 50 and inner.memory == 2 * 10**9
        with limited(1, "1GiB") as inner:
            assert inner.seconds == 1 and inner.memory == 2**30 and inner.left() <= 1
        with limited(70, "3GB") as inner:
            assert inner.seconds == 50 and inner.memory == 2 * 10**9
    assert current().deadline == float("inf")


def test_time_that_is_over_is_an_error_that_names_the_option() -> None:
    @bounded
    def late(*, timeout: float | None = None, max_memory: int | str | None = None) -> float:
        time.sleep(0.02)
        return current().left()

    with pytest.raises(
        LimitReached, match=r"^not proved: the work took longer than 0\.01 s; .* timeout=$"
    ):
        late(timeout=0.01)
    assert late(timeout=10) > 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4GB", 4 * 10**9), ("4 gib", 4 << 30), ("1.5k", 1500), ("9" * 18 + "T", 1 << 62)],
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "much", "9" * 5000, "1e9", "4GX", "1.", True, 0])
def test_no_sizes_of_memory(text: int | str) -> None:
    with pytest.raises(InputError, match="is not an amount of memory"):
        read_size(text)


def test_every_function_that_runs_models_takes_both() -> None:
    model = parse("g (float[2] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }")
    for function in (onnxgrad.optimize, onnxgrad.gradient, onnxgrad.check_gradient):
        with pytest.raises(LimitReached, match="timeout="):
            onnxgrad.verify(model, model, timeout=1e-9)
        with pytest.raises(InputError, match="timeout"):
            function(model, timeout=-1)
        with pytest.raises(InputError, match="amount of memory"):
            function(model, max_memory="lots")
        function(model, timeout=60, max_memory="4GiB")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["verify", "model.onnx", "model.onnx"], ["optimize", "model.onnx", "--dry-run"]]
)
def test_a_model_that_does_not_end(tmp_path: Path, words: list[str]) -> None:
    saved(parse(ENDLESS), tmp_path)
    code, said, seconds = command(*words, "--timeout", "3", folder=tmp_path)
    assert code == 1 and "not proved" in said and "--timeout" in said and said.count("\n") == 1
    assert seconds < 20


@pytest.mark.slow
def test_the_float64_reference_ends_with_the_work(tmp_path: Path) -> None:
    """One numpy call in a loop of a recurrence: quick in onnxruntime, slow in float64, and checked between nodes only."""
    steps = 400_000
    weights = [
        np.array([steps, 1, 1]),
        np.ones((1, 1, 1), np.float32),
        np.ones((1, 1, 1), np.float32),
    ]
    model = parse("""g (float[1, 1, 1] x) => (float y) {
        X = Expand(x, s) all, h = RNN<hidden_size = 1>(X, w, r) y = ReduceMax<keepdims = 0>(h) }""")
    for name, array in zip("swr", weights, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    started = time.monotonic()
    report = onnxgrad.verify(model, model, float64_budget=1.0)
    assert report.ok and not report.checks["float64"].ran and "s" in report.checks["float64"].why
    assert time.monotonic() - started < 30


def slow_constants(count: int) -> onnx.ModelProto:
    """Sums of constants that each take onnxruntime seconds to compute."""
    nodes, names = [], ["x"]
    for i in range(count):
        fill = numpy_helper.from_array(np.array([1e-4 * (i + 1)], np.float32))
        nodes.append(helper.make_node("ConstantOfShape", ["s"], [f"c{i}_0"], value=fill))
        nodes += [
            helper.make_node("MatMul", [f"c{i}_{k}", f"c{i}_0"], [f"c{i}_{k + 1}"])
            for k in range(40)
        ]
        nodes.append(helper.make_node("ReduceMax", [f"c{i}_40"], [f"r{i}"], keepdims=0))
        names.append(f"r{i}")
    nodes.append(helper.make_node("Sum", names, ["y"]))
    x, y = (helper.make_tensor_value_info(n, 1, ["N"]) for n in "xy")
    shape = numpy_helper.from_array(np.array([4096, 4096]), "s")
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_folding_and_its_retries_end_with_the_work(tmp_path: Path) -> None:
    saved(slow_constants(8), tmp_path)
    words = ["optimize", "model.onnx", "-o", "out.onnx", "--no-verify", "--timeout", "3"]
    code, said, seconds = command(*words, folder=tmp_path)
    assert code == 1 and "--timeout" in said and seconds < 15
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_memory_of_a_run_is_bounded_and_the_message_names_the_option(tmp_path: Path) -> None:
    text = "g (float[1] x) => (float[1] y) {{ n = Shape(x) s = Mul(n, k) c = ConstantOfShape(s) "
    text = text.replace("{{", "{") + "m = ReduceMax<keepdims = 0>(c) y = Add(x, m) }"
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array([10**9]), "k"))
    saved(model, tmp_path)
    code, said, _ = command(
        "verify", "model.onnx", "model.onnx", "--max-memory", "1GiB", folder=tmp_path
    )
    assert code == 1 and "not proved" in said and "--max-memory" in said and "Traceback" not in said


def test_a_proof_under_a_hard_limit_of_the_shell(tmp_path: Path) -> None:
    saved(parse(BRANCHES), tmp_path)
    words = ["optimize", "model.onnx", "-o", "out.onnx", "-q"]
    assert command(*words, folder=tmp_path, ulimit=3_000_000)[:2] == (0, "")


def test_too_many_threads_are_refused(tmp_path: Path) -> None:
    path = saved(parse(BRANCHES), tmp_path)
    code, said, _ = command("verify", path, path, "--threads", "100000", folder=tmp_path)
    assert code == 2 and "--threads must be from 1 to 256" in said
    with pytest.raises(InputError, match="threads must"):
        onnxgrad.verify(str(path), str(path), threads=100_000)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["optimize", "grad", "place"])
def test_writing_is_part_of_the_work(command: str, tmp_path: Path) -> None:
    """A file of a few bytes on disk that holds 4 GiB of zeros would be copied however long that takes."""
    model = parse(
        "g (float[2] x, int64 i) => (float y) { p = Gather <axis = 0> (w, i) q = Mul (p, x) y = ReduceSum <keepdims = 0> (q) }"
    )
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1 << 30])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(1 << 32))):
        weight.external_data.add(key=key, value=value)
    onnx.save(model, tmp_path / "m.onnx")
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(1 << 32)
    words = [command, "m.onnx", "-o", "out.onnx", "--timeout", "0.3"]
    words += {
        "optimize": ["--no-verify"],
        "grad": ["--no-verify", "--wrt", "x"],
        "place": ["--device", "cpu=Mul"],
    }[command]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "onnxgrad", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and "--timeout" in done.stderr and time.monotonic() - started < 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "w.bin"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux bounds its own process")
def test_the_command_bounds_its_own_process_and_python_does_not() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited(30, "1GB"):  # of the Python functions
        assert resource.getrlimit(resource.RLIMIT_AS) == before
    with bounding_us(30, "1GB"):
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        assert 1e9 < soft < 1e9 + (1 << 40) and soft != before[0] and hard == before[1]
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with pytest.raises(LimitReached, match="max_memory"), bounding_us(30, "1GB"):
        np.ones(1 << 34)
