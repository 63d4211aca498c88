"""Signals, closed streams and pipes, in real processes: the right exit code, one line, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad.cli.commands import inspect
from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]
SLOW = (
    pytest.mark.slow
)  # the same with another signal or command: one of each is in the default run
ONNXGRAD = [sys.executable, "-m", "onnxgrad"]


def big(folder: Path, megabytes: int = 48) -> Path:
    """A model with one external weight that takes a while to write."""
    count = megabytes << 18
    tensor = numpy_helper.from_array(np.zeros(0, np.float32), "w")
    tensor.dims[:] = [1, count]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(4 * count))):
        tensor.external_data.add(key=key, value=value)
    (folder / "w.bin").write_bytes(b"abcd" * count)
    nodes = [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Mul", ["i", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, 1, [None, count]) for name in "xy")
    graph = helper.make_graph(nodes, "big", [x], [y], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "big.onnx").write_bytes(model.SerializeToString())
    return folder / "big.onnx"


def started(*words: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ONNXGRAD, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=SLOW),
        pytest.param(signal.SIGHUP, marks=SLOW),
    ],
)
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    model, out = big(tmp_path), tmp_path / "out"
    out.mkdir()
    running = started("optimize", model, "--no-verify", "-o", out / "o.onnx")
    until = time.monotonic() + 60
    while not list(out.iterdir()) and time.monotonic() < until:
        time.sleep(0.001)
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    if running.returncode == 0:
        pytest.skip("it was faster")
    assert running.returncode == 128 + number, said
    assert list(out.iterdir()) == [] and said.count(b"\n") == 1 and said.startswith(b"onnxgrad: ")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks into /proc")
@pytest.mark.parametrize("tries", [1, pytest.param(60, marks=SLOW)])
def test_an_interrupt_during_start_up_gives_no_traceback(tries: int) -> None:
    """From the first line of ours on, at any moment of the 0.6 s that imports take."""

    def catches(pid: int) -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        mask = int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16)
        return bool(mask & 1 << (signal.SIGINT - 1))

    for i in range(tries):
        running = started("optimize", ROOT / "models" / "lstmcell.onnx", "--dry-run", "-q")
        for wanted in (True, False):  # Python has set its handler, we have taken it away
            while running.poll() is None and catches(running.pid) is not wanted:
                time.sleep(0.0005)  # unreaped, it has a status
        time.sleep(0.1 if tries == 1 else 0.01 * i)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        assert b"Traceback" not in said and said.count(b"\n") <= 1, (i, said)
        assert running.returncode in (-signal.SIGINT, 130, 0), (i, said)


def test_what_a_library_makes_of_an_interrupt_is_the_interrupt(
    run: Run, branches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(*_: object) -> int:
        with contextlib.suppress(KeyboardInterrupt):  # as C code does
            signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr(inspect, "run", importing)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    done = run("inspect", branches)
    assert (done.code, done.err) == (130, "onnxgrad: interrupted\n")
    monkeypatch.undo()
    assert run("inspect", branches).code == 0


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("optimize MODEL --no-verify -o OUT", ""),
        *(
            pytest.param(w, end, marks=SLOW)
            for w in ("inspect MODEL", "passes", "ops", "--help")
            for end in ("", "2>&1")
        ),
    ],
)
def test_a_reader_that_leaves_early(branches: Path, tmp_path: Path, words: str, end: str) -> None:
    """`| head -1`; here the reader is gone before the first line, which is what head becomes."""
    words = words.replace("MODEL", str(branches)).replace("OUT", str(tmp_path / "o.onnx"))
    script = (
        f"{{ sleep 0.1; {' '.join(ONNXGRAD)} {words} {end}; echo $? >{tmp_path}/code; }} | true"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, cwd=ROOT, timeout=60)
    codes = ("0", "141") if "--help" in words else ("141",)
    assert (tmp_path / "code").read_text().strip() in codes and done.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("optimize MODEL --no-verify -o OUT <&- >&-", 0, ""),
        ("optimize MODEL --no-verify -o - >&-", 2, "onnxgrad: -o -: stdout is closed\n"),
        ("inspect - <&-", 2, "onnxgrad: stdin: is closed\n"),
        ("inspect MODEL >/dev/full", 2, "onnxgrad: No space left on device\n"),
        pytest.param(
            "inspect MODEL --json - >&-", 2, "onnxgrad: --json -: stdout is closed\n", marks=SLOW
        ),
        pytest.param("optimize MODEL -o OUT <&- >&-", 0, "", marks=SLOW),
        pytest.param("inspect MODEL <&- >&-", 0, "", marks=SLOW),
        pytest.param("inspect none.onnx <&- >&- 2>&-", 2, "", marks=SLOW),
        pytest.param(
            "inspect MODEL --json - >/dev/full",
            2,
            "onnxgrad: No space left on device\n",
            marks=SLOW,
        ),
    ],
)
def test_streams_that_are_closed_or_full(
    branches: Path, tmp_path: Path, words: str, code: int, said: str
) -> None:
    words = words.replace("MODEL", str(branches)).replace("OUT", str(tmp_path / "o.onnx"))
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(ONNXGRAD)} {words}"], capture_output=True, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stderr.decode()) == (code, said)
    if "optimize" in words and code == 0:
        assert onnx.load(tmp_path / "o.onnx").graph.node


def test_warnings_of_libraries_are_no_messages_of_ours(
    run: Run, branches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: object) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a library\nis worried", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(inspect, "run", warn)
    assert run("inspect", branches).err == ""
    assert run("inspect", branches, "-v").err == "UserWarning: a library is worried\n"


def test_handlers_are_as_they_were(run: Run, branches: Path) -> None:
    frozen = gc.get_freeze_count()
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert run("inspect", branches).code == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # the collector still sees the objects of other programs


def test_the_program_ends_at_once_and_as_python_would() -> None:
    """What is registered for the end runs, buffers are written, and a thread that works is waited for."""
    code = (
        "import atexit, sys, threading, time; from onnxgrad.cli.process import leave\n"
        "atexit.register(print, 'registered'); sys.stdout.write('buffered ')\n"
        "if sys.argv[1:]: threading.Thread(target=lambda: (time.sleep(0.2), print('worked'))).start()\n"
        "leave(3); print('stayed')"
    )
    for words, rc, shown in (
        ((), 3, "buffered registered"),
        (("t",), 0, "buffered stayed worked registered"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True
        )
        assert (done.returncode, " ".join(done.stdout.split()), done.stderr) == (rc, shown, "")


def test_optimize_imports_what_it_needs(tmp_path: Path) -> None:
    """An import that nothing here needs costs every command its time."""
    code = (
        "import sys; from onnxgrad.__main__ import main\n"
        "code = main(['optimize', 'models/resnet18.onnx', '-o', sys.argv[1], '--no-verify', '-q'])\n"
        "unneeded = ('onnxgrad.grad', 'onnxgrad.train.', 'onnxgrad.transform', 'onnxgrad.report.html', 'onnxgrad.surface',\n"
        "    'onnxgrad.jobs.surgery.e', 'onnxgrad.jobs.surgery.declarations', 'onnxgrad.jobs.tuning.', 'onnxgrad.rewrite.exact',\n"
        "    'statistics', 'onnxruntime', 'rich', 'onnx.reference')\n"
        "print(code, [m for m in sys.modules if m.startswith(unneeded)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "o.onnx")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("0 []\n", "")


@pytest.mark.slow
def test_passes_of_other_parts_are_found_where_they_are_named(tmp_path: Path) -> None:
    """`gradient` is registered above the passes, and imported when it is named."""
    words = ["optimize", "models/resnet18.onnx", "-o", str(tmp_path / "o.onnx"), "--no-verify"]
    named = [
        ("--passes", "lower-training"),
        ("--without", "lower-training"),
        ("--without", "lower-trainin"),
    ]
    code = f"import sys; from onnxgrad.cli.app import main; print([main([*{words}, *w]) for w in {named}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (
        done.stdout.splitlines()[-1] == "[0, 0, 2]"
        and "did you mean 'lower-trainin*'" in done.stderr
    )


@pytest.mark.slow
def test_results_are_shown_where_no_command_imported_their_forms() -> None:
    code = "from onnxgrad.jobs.inspection.contents import weights; print(weights('models/resnet18.onnx').to_markdown()[:1])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("#\n", "")
