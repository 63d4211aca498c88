"""Children that are forks of a program that has just started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxgrad.verify.running import fork
from tests.helpers import ROOT
from tests.verify.running.test_session import gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")

# what follows runs as the program `onnxgrad`, in a folder of a stranger
PROGRAM = """
import os, sys
sys.argv = ["onnxgrad"]
sys.path.insert(0, "")
import onnxgrad
from onnxgrad.cli.process import one_blas_thread
with one_blas_thread():
    from onnxgrad.verify.running.child_process import pooled, warm
assert "OPENBLAS_NUM_THREADS" not in os.environ
"""
FORKS = """
warm("cpu")
import onnx
warm("float64")
from onnxgrad.verify import verify

model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 17]> g (float[N, 4] x) => (float[N] y) '
    "{s = Softmax (x) y = ReduceMax <axes = [1], keepdims = 0> (s)}"
)
kinds = ("cpu", "float64")
before = [pooled(kind).process.pid for kind in kinds]
for pid in before:
    assert open(f"/proc/{pid}/cmdline").read() == open("/proc/self/cmdline").read()
report = verify(model, model)
assert report.ok and all(check.ran for check in report.checks.values()), report
assert [pooled(kind).process.pid for kind in kinds] == before
names = [os.readlink(f"/proc/self/fd/{n}") for n in (pooled("cpu").life, pooled("float64").life)]
for pid, theirs in zip(before, reversed(names)):
    files = [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]
    assert theirs not in files, "a child that holds the other's pipe outlives us"
print(*before, flush=True)
"""


def program(code: str, folder: Path) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("OPENBLAS_NUM_THREADS", None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=folder,
    )


def test_a_program_forks_its_children(tmp_path: Path) -> None:
    for name in ("onnxruntime", "onnxgrad_plugin", "fractions"):  # a child would import the first
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of a stranger')")
    process = program(f"{FORKS}input()", tmp_path)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.communicate()
    assert all(gone(pid) for pid in pids)


def test_released_children_end_while_the_program_goes_on(tmp_path: Path) -> None:
    code = """
from onnxgrad.cli.process import leave
from onnxgrad.verify.running.child_process import release
warm("cpu")
first = pooled("cpu")
first.process.wait = None  # only at the end
release()
first.process.wait = type(first.process).wait.__get__(first.process)
assert pooled("cpu") is not first and pooled("cpu").ask(60.0, "versions")
print(first.process.pid, pooled("cpu").process.pid, flush=True)
input()
print(first.process.returncode, flush=True)
leave(0)
"""
    process = program(code, tmp_path)
    assert process.stdout is not None
    first, second = (int(word) for word in process.stdout.readline().split())
    assert gone(first) and not gone(second, 0.1)
    assert process.communicate("\n")[0] == "None\n", "nobody waited for the first"
    assert gone(second)


def test_a_process_with_threads_does_not_fork(tmp_path: Path) -> None:
    code = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
warm("cpu")
child = pooled("cpu")
print(open(f"/proc/{child.process.pid}/cmdline").read() == open("/proc/self/cmdline").read())
child.ask(60.0, "versions")
"""
    process = program(code, tmp_path)
    out = process.communicate()[0]
    assert (process.returncode, out) == (0, "False\n")


def test_a_process_that_only_imports_us_does_not_fork() -> None:
    assert not fork.may_fork()


def test_a_process_that_cannot_count_its_threads_does_not_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unmounted(folder: str) -> list[str]:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(fork, "IS_PROGRAM", True)
    monkeypatch.setattr(fork.os, "listdir", unmounted)
    assert not fork.may_fork()
