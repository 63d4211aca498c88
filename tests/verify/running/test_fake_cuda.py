"""CUDA without a device: `tests/fake_cuda` is the installed onnxruntime, which says that it has CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad import verify
from onnxgrad.__main__ import main
from onnxgrad.errors import InputError
from onnxgrad.verify.running import child_process, session
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.child_sessions import DEVICE_SESSIONS
from onnxgrad.verify.running.session import open_session
from tests.helpers import ROOT, parse

ADD = "g (float[2] x) => (float[2] y) { y = Add (x, x) }"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """`cuda(words)`: children from here on have the fake, with these words of `FAKE_CUDA`; the
    sessions that were made so far, when it is called.
    """
    log = tmp_path / "sessions"
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "fake_cuda"))
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))

    def start(words: str = "") -> list[str]:
        monkeypatch.setenv("FAKE_CUDA", words)
        child_process.close()
        session.versions.cache_clear()
        return log.read_text().splitlines() if log.exists() else []

    yield start
    child_process.close()
    session.versions.cache_clear()


def tree(*, casts: bool) -> onnx.ModelProto:
    """A regressor of trees, which CUDA has no kernel for, perhaps behind a Cast to its own type."""
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=1)] if casts else []
    nodes.append(
        helper.make_node(
            "TreeEnsembleRegressor", ["c" if casts else "x"], ["y"], domain="ai.onnx.ml",
            n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
            nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
            nodes_values=[0.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0],
            nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2],
            target_ids=[0, 0], target_weights=[1.0, 2.0],
        )
    )  # fmt: skip
    values = [helper.make_tensor_value_info(n, 1, ["N", s]) for n, s in (("x", 2), ("y", 1))]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    return helper.make_model(graph, ir_version=9, opset_imports=opsets)


def test_a_result_without_a_node_on_the_device_is_equal_on_the_cpu(cuda: Any) -> None:
    cuda()
    report = verify(tree(casts=True), tree(casts=False), provider="cuda", seeds=(0,))
    assert report.ok and report.summary == "equal on cpu; nothing runs on cuda"
    assert report.idle == ("cuda",) and report.to_dict()["idle"] == ["cuda"]
    both = verify(tree(casts=True), tree(casts=True), provider="cuda", seeds=(0,))
    assert both.summary == "equal on cuda"
    wrong = tree(casts=False)
    wrong.graph.node[0].attribute[-1].floats[0] = 5.0
    assert verify(tree(casts=True), wrong, provider="cuda", seeds=(0,)).verdict == "different"


def test_what_is_measured_has_to_run_there(cuda: Any) -> None:
    cuda()
    with pytest.raises(RunFailed, match="no node of the model runs on CUDAExecutionProvider"):
        open_session(tree(casts=False), provider="cuda")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("broken", "does not start here: it needs an NVIDIA driver"),
        ("fails", "the libraries of the provider cannot be loaded: libcudart"),
    ],
)
def test_a_provider_that_does_not_start_is_the_users(cuda: Any, words: str, why: str) -> None:
    cuda(words)
    for _ in range(2):  # a child that was not prepared is not there the second time
        with pytest.raises(InputError, match=why):
            open_session(parse(ADD), provider="cuda")
    assert words != "fails" or "cuda" not in child_process._pool
    cuda("preload")
    assert open_session(parse(ADD), provider="cuda").placement == {"CUDAExecutionProvider": 1}


def test_a_device_holds_the_sessions_of_two_models(cuda: Any) -> None:
    cuda()
    sessions = [
        open_session(parse(ADD.replace("[2]", f"[{n}]")), provider="cuda") for n in range(1, 5)
    ]
    child = child_process.pooled("cuda")
    held = [s for s in sessions if child.ask(10.0, "has", s._key)]
    assert held == sessions[-DEVICE_SESSIONS:]
    assert sessions[0].run({"x": np.ones(1, np.float32)})["y"] == 2


def test_both_providers_in_one_run(cuda: Any) -> None:
    cuda()
    model = parse(ADD)
    report = verify(model, model, provider="cpu,cuda", seeds=(0,))
    assert report.summary == "equal on cpu, cuda"
    assert list(report.checks) == ["float64", "onnxruntime", "onnxruntime on cuda"]
    wrong = verify(model, parse(ADD.replace("Add", "Mul")), provider="cpu,cuda", seeds=(0,))
    assert wrong.verdict == "different"
    assert {d.check for d in wrong.differences} == set(report.checks)
    mixed = verify(tree(casts=True), tree(casts=False), provider="cpu,cuda", seeds=(0,))
    assert mixed.summary == "equal on cpu; nothing runs on cuda"
    for bad in ("cpu,tpu", "", "cpu,cpu"):
        with pytest.raises(InputError, match="provider"):
            verify(model, model, provider=bad)


TRAIN = """
import sys, numpy as np
from onnxgrad import InputError, Trainer, train, training_step
step = training_step({path!r}, "loss", train.SGD(lr=1e-2))
feeds = {{k[3:]: v for k, v in np.load({data!r}).items() if k.startswith("in:")}}
try:
    trainer = Trainer(step, provider="cuda", engine="graph")
    print(trainer.step(feeds) > 0, trainer.evaluate([feeds])["loss"] > 0)
    kept = train.features({path!r}, "relu", feeds, provider="cuda")
    print(kept["relu"].shape)
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("preload", "True True\n(4, 24)\n"),
        pytest.param(
            "broken", "CUDAExecutionProvider is part of onnxruntime", marks=pytest.mark.slow
        ),
        pytest.param(
            "fails", "the libraries of the provider cannot be loaded", marks=pytest.mark.slow
        ),
    ],
)
def test_training_loads_the_libraries_and_looks_at_the_provider(
    cuda: Any, words: str, said: str
) -> None:
    cuda(words)
    mlp = ROOT / "models" / "training" / "mlp"
    script = TRAIN.format(path=f"{mlp}.onnx", data=f"{mlp}.npz")
    path = os.pathsep.join([str(ROOT / "tests" / "fake_cuda"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith(said), done.stdout + done.stderr
    assert words != "preload" or set(cuda()) == {"cuda"}


def test_ci_measures_where_it_proves(
    cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda()
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(ADD), "add.onnx")
    recipe = Path("onnxgrad.toml")
    recipe.write_text(
        'require = { latency = "<= 100" }\n[verify]\nprovider = "cuda"\nseeds = [0]\n'
        '[bench]\nseconds = 0.01\nrounds = 2\n[ci]\nmodels = ["add.onnx"]\n'
    )
    assert main(["ci", "-q", "--json", "ci.json"]) == 0
    (model,) = json.loads(Path("ci.json").read_text())["models"]
    assert model["result"]["latency"]["clock"] == "wall" and model["proof"]["provider"] == "cuda"


@pytest.mark.slow
def test_ci_holds_memory_on_the_device_by_its_arena(
    cuda: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weight, input and two values of 1 MiB each: 4 MiB."""
    cuda()
    monkeypatch.chdir(tmp_path)
    model = parse("g (float[262144] x, float[262144] w) => (float[262144] y) {"
                  " m = Mul (x, w) e = Exp (m) y = Add (e, x) }")  # fmt: skip
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.ones(262144, np.float32) / 3, "w"))
    onnx.save(model, "m.onnx")
    recipe = Path("onnxgrad.toml")
    recipe.write_text(
        'require = { memory = "<= 4MiB" }\n[verify]\nprovider = "cuda"\nseeds = [0]\n'
        '[ci]\nmodels = ["m.onnx"]\n'
    )
    assert main(["ci", "-q", "--json", "ci.json"]) == 0
    (found,) = json.loads(Path("ci.json").read_text())["models"]
    assert (found["result"]["memory"], found["result"]["memory_on"]) == (4 << 20, "cuda")
    recipe.write_text(recipe.read_text().replace("4MiB", "3.9MiB"))
    assert main(["ci", "-q"]) == 1
    capsys.readouterr()
    refused = {
        "host": "counts 4,194,304 bytes of a model that has 12,582,912; require",
        "uncounted": "has no count of it (1.31 and newer do); require",
    }
    for words, why in refused.items():
        cuda(words)
        assert main(["ci", "-q"]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and why in line and "in a recipe for the CPU" in line


def checked(folder: Path, *groups: str, words: str = "") -> subprocess.CompletedProcess[str]:
    """scripts/check_cuda.sh with the fake."""
    fake = {"PYTHONPATH": str(ROOT / "tests" / "fake_cuda"), "FAKE_CUDA": words}
    command = ["bash", "scripts/check_cuda.sh", "--out", str(folder), "--python", sys.executable]
    return subprocess.run(
        [*command, *groups], cwd=ROOT, env={**os.environ, **fake}, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_script_for_a_gpu_says_what_fails_and_goes_on(tmp_path: Path) -> None:
    broken = checked(tmp_path, "provider", "wrong", words="broken")
    assert broken.returncode == 1
    assert "FAIL provider (exit code" in broken.stdout and "PASS wrong model" in broken.stdout
    whole = checked(tmp_path, "provider", "wrong", "cpu-only", "diverged")
    assert whole.returncode == 0, whole.stdout
    assert "PASS wrong model" not in whole.stdout  # it passed before
    assert "6 passed, 0 failed, 0 left" in whole.stdout
    assert checked(tmp_path, "tests-of-mine").returncode == 2


@pytest.mark.torch
def test_the_benchmark_for_a_gpu_compares_what_is_equal(tmp_path: Path) -> None:
    """On the CPU, with tiny networks: its gradients are PyTorch's."""
    record = tmp_path / "record.md"
    command = [
        sys.executable,
        "scripts/bench_cuda.py",
        "--device",
        "cpu",
        "--tiny",
        "--rounds",
        "1",
    ]
    subprocess.run([*command, "--record", str(record)], cwd=ROOT, check=True, capture_output=True)
    head, _, *rows = [line.strip("| \n").split(" | ") for line in record.read_text().splitlines()]
    assert [row[0] for row in rows] == ["bert_base", "gpt2_small", "vit_b", "resnet50"]
    assert all(0 < float(row[head.index("worst difference")]) < 1e-5 for row in rows)
