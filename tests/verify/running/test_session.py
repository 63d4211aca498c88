"""The pooled child: results, every kind of value, deaths, limits, providers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError, NotProved
from onnxgrad.verify.proof_model import _openable
from onnxgrad.verify.running.child_process import Child, RunFailed, held, last_words, pooled
from onnxgrad.verify.running.installed import runtime_limits
from onnxgrad.verify.running.session import _preload, open_session, run, run_many, versions
from tests.helpers import ROOT, parse

NEG = "g (float[N] x) => (float[N] y) { y = Neg(x) }"
# Folding this constant division kills onnxruntime 1.31 with SIGFPE while it builds the session.
INT_MIN_OVER_MINUS_ONE = """
g (int64[1] x) => (int64[1] y) <int64[1] a = {-9223372036854775808}, int64[1] b = {-1}> { c = Div(a, b) y = Add(x, c) }
"""
ENDLESS = """
g (int64 n, float[300,300] x) => (float[300,300] y) {
  y = Loop(n, , x) <body = b (int64 i, bool c, float[300,300] v) => (bool d, float[300,300] w) {
    d = Identity(c) w = MatMul(v, v) }>
}
"""


def test_results_by_name() -> None:
    x = np.array([1, -2], np.float32)
    assert np.array_equal(run(parse(NEG), {"x": x})["y"], -x)


def test_bytes_and_path(tmp_path: Any) -> None:
    model = parse(NEG)
    path = tmp_path / "a model.onnx"
    path.write_bytes(model.SerializeToString())
    x = np.ones(3, np.float32)
    for source in (model.SerializeToString(), path, str(path)):
        assert np.array_equal(run(source, {"x": x})["y"], -x)


def test_a_changed_file_is_loaded_again(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    x = np.ones(3, np.float32)
    path.write_bytes(parse(NEG).SerializeToString())
    run(path, {"x": x})
    path.write_bytes(parse("g (float[N] x) => (float[N] y) { y = Add(x, x) }").SerializeToString())
    assert np.array_equal(run(path, {"x": x})["y"], 2 * x)


def test_one_session_for_many_feeds_of_any_size() -> None:
    feeds = [{"x": np.arange(n, dtype=np.float32)} for n in (0, 1, 5, 100_000)]
    for wanted, got in zip(feeds, run_many(parse(NEG), feeds)):
        assert np.array_equal(got["y"], -wanted["x"])


def test_chosen_outputs() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }")
    assert list(run(model, {"x": np.ones(1, np.float32)}, outputs=["z"])) == ["z"]


def test_sequences_strings_and_absent_optionals() -> None:
    model = parse(
        """g (seq(float[N]) s, string[2] t, optional(float[2]) o)
             => (seq(float[N]) y, string[2] z, bool b, optional(float[2]) p) {
             y = Identity(s) z = Identity(t) b = OptionalHasElement(o) p = Identity(o) }""",
        opset=18,
    )
    one = np.ones(2, np.float32)
    got = run(model, {"s": [one, one[:1]], "t": np.array(["a", "ü"]), "o": None})
    assert [v.shape for v in got["y"]] == [(2,), (1,)]
    assert got["z"].tolist() == ["a", "ü"] and not got["b"] and got["p"] is None
    assert run(model, {"s": [], "t": np.array(["a", "b"], object), "o": one})["p"].tolist() == [
        1,
        1,
    ]


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "float8e5m2"])
def test_types_that_numpy_lacks(kind: str) -> None:
    model = parse(f"g ({kind}[3] x) => ({kind}[3] y) {{ y = Identity(x) }}", opset=21)
    dtype = getattr(
        ml_dtypes, {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}.get(kind, kind)
    )
    x = np.array([1, 2, -1.5], dtype)
    y = run(model, {"x": x})["y"]
    assert y.dtype == x.dtype and y.tobytes() == x.tobytes()


@pytest.mark.parametrize("values", [[1, 2, -3], [-8, 7], [5]])
def test_packed_integers(values: list[int]) -> None:
    size = len(values)
    model = parse(
        f"""g (int4[{size}] x, float s) => (float[{size}] y, int4[{size}] z) {{
              y = DequantizeLinear(x, s) z = QuantizeLinear <output_dtype = 22> (y, s) }}""",
        opset=21,
    )
    got = run(model, {"x": np.array(values, ml_dtypes.int4), "s": np.array(1, np.float32)})
    assert got["y"].tolist() == values
    assert got["z"].dtype == ml_dtypes.int4 and got["z"].astype(int).tolist() == values


def test_a_signal_is_an_error_not_the_end() -> None:
    with pytest.raises(RunFailed, match="SIGFPE") as caught:
        run(parse(INT_MIN_OVER_MINUS_ONE), {"x": np.zeros(1, np.int64)})
    assert caught.value.stage == "killed"
    assert isinstance(caught.value, NotProved)
    assert (
        run(parse(NEG), {"x": np.ones(1, np.float32)})["y"] == -1
    )  # and the next run gets a fresh child


def test_without_optimisations_the_same_model_dies_only_when_it_runs() -> None:
    session = open_session(parse(INT_MIN_OVER_MINUS_ONE), optimize=False)
    with pytest.raises(RunFailed, match="SIGFPE"):
        session.run({"x": np.zeros(1, np.int64)})


def test_timeout() -> None:
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"within 0\.5 s") as caught:
        run(
            parse(ENDLESS),
            {"n": np.array(10**9), "x": np.zeros((300, 300), np.float32)},
            timeout=0.5,
        )
    assert caught.value.stage == "timeout"
    assert time.monotonic() - started < 5


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")
@pytest.mark.parametrize("count", [1, 100_000])
def test_a_child_that_stands_still_is_killed(count: int) -> None:
    """Whether it reads the request, which fits into a pipe or does not, or never does."""
    session, x = open_session(parse(NEG)), np.ones(count, np.float32)
    session.run({"x": x})
    os.kill(pooled("cpu").process.pid, signal.SIGSTOP)
    with pytest.raises(RunFailed, match=r"within 0\.4 s") as caught:
        session.run({"x": x}, timeout=0.4)
    assert caught.value.stage == "timeout"
    assert session.run({"x": x})["y"][0] == -1


@pytest.mark.skipif(not hasattr(select, "poll"), reason="without it, each request has a thread")
def test_quick_answers_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    session, start = open_session(parse(NEG)), threading.Thread.start
    started: list[threading.Thread] = []

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    for _ in range(20):
        session.run({"x": np.ones(1, np.float32)})
    assert len(started) < 20  # on a busy machine some answers are late


def test_memory_is_limited() -> None:
    model = parse("g (int64[1] n) => (float[M] y) { y = ConstantOfShape(n) }")
    with pytest.raises(RunFailed):
        run(model, {"n": np.array([2**46])})


def test_a_session_survives_the_death_of_its_child() -> None:
    session = open_session(parse(NEG))
    with pytest.raises(RunFailed):
        run(parse(INT_MIN_OVER_MINUS_ONE), {"x": np.zeros(1, np.int64)})
    assert session.run({"x": np.ones(1, np.float32)})["y"] == -1


@pytest.mark.parametrize(
    ("model", "stage"),
    [
        (b"no model", "load"),
        (parse("g (float[N] x) => (float[N] y) { y = my.Op(x) }").SerializeToString(), "load"),
        (parse(NEG, ir_version=99).SerializeToString(), "load"),
        (
            parse(
                "g (float[N] x) => (float[3] y) <int64[1] s = {3}> { y = Reshape(x, s) }"
            ).SerializeToString(),
            "run",
        ),
    ],
)
def test_refusals_are_one_line_without_onnxruntimes_clutter(model: bytes, stage: str) -> None:
    with pytest.raises(RunFailed) as caught:
        run(model, {"x": np.ones(1, np.float32)})
    assert caught.value.stage == stage
    assert not any(
        word in str(caught.value) for word in ("\n", "[ONNXRuntimeError]", "onnxruntime::", "_src/")
    )


def test_feeds_that_do_not_fit() -> None:
    with pytest.raises(RunFailed, match=r"tensor\(double\)"):
        run(parse(NEG), {"x": np.ones(1)})
    with pytest.raises(InputError, match=r"inputs=\{'x': array\}"):
        run(parse(NEG), {})


def test_missing_files_and_providers() -> None:
    with pytest.raises(InputError, match="cannot read"):
        run("nowhere.onnx", {})
    with pytest.raises(InputError, match="unknown provider"):
        run(parse(NEG), {}, provider="tpu")


@pytest.mark.skipif("CUDAExecutionProvider" in versions()["providers"], reason="CUDA is there")
def test_missing_cuda_says_how_to_get_it() -> None:
    with pytest.raises(InputError, match=r"pip install 'onnxruntime-gpu\[cuda,cudnn\]'"):
        run(parse(NEG), {"x": np.ones(1, np.float32)}, provider="cuda")


def test_limits_of_the_runtime_are_the_last_that_load() -> None:
    max_ir, max_opset = runtime_limits()
    assert max_ir >= 10 and max_opset >= 22
    x = {"x": np.ones(1, np.float32)}
    run(parse(NEG, opset=max_opset, ir_version=max_ir), x)
    for opset, ir_version in ((max_opset + 1, max_ir), (max_opset, max_ir + 1)):
        with pytest.raises(RunFailed):
            run(parse(NEG, opset=opset, ir_version=ir_version), x)


def test_session_options_and_threads_reach_onnxruntime() -> None:
    with pytest.raises(RunFailed):
        run(
            parse(NEG),
            {"x": np.ones(1, np.float32)},
            session_options={"session.load_model_format": "ORT"},
        )
    assert run(parse(NEG), {"x": np.ones(1, np.float32)}, threads=2)["y"] == -1


def test_the_child_is_reused_and_dies_with_us(tmp_path: Path) -> None:
    code = """
import os, sys
import numpy as np, onnx
from onnxgrad.verify.running.child_process import pooled
from onnxgrad.verify.running.session import run
model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 17]> g (float[N] x) => (float[N] y) {y = Neg(x)}')
run(model, {"x": np.ones(1, np.float32)})
first = pooled("cpu").process.pid
run(model, {"x": np.ones(2, np.float32)})
assert first == pooled("cpu").process.pid
if sys.platform == "linux":  # the child's products have one thread, those of a caller's process are left alone
    assert b"OPENBLAS_NUM_THREADS=1" in open(f"/proc/{first}/environ", "rb").read()
    assert "OPENBLAS_NUM_THREADS" not in os.environ
print(first)
"""
    homes = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **homes}
    for name in ("ORT_DISABLE_TELEMETRY", "OPENBLAS_NUM_THREADS"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    assert not done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
    assert not list(tmp_path.iterdir()), "onnxruntime keeps what it reports on use beside us"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_the_allocator_of_the_reference_keeps_memory_unless_users_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settings(kind: str) -> list[str]:
        child = Child(kind)
        try:
            child.ask(60.0, "has", "")  # it has started
            words = Path(f"/proc/{child.process.pid}/environ").read_bytes().split(b"\0")
        finally:
            child.kill()
        return sorted(word.decode() for word in words if word.startswith(b"MALLOC_"))

    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    assert settings("cpu") == []
    assert settings("float64") == [
        "MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=134217728",
    ]  # fmt: skip
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    assert "MALLOC_TRIM_THRESHOLD_=4096" in settings("float64")


def test_importing_the_package_does_not_import_onnxruntime() -> None:
    code = "import sys, onnxgrad.verify; print('onnxruntime' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_large_arrays_cross_the_pipe_whole() -> None:
    x = np.random.default_rng(0).standard_normal(3_000_001).astype(np.float32)
    assert np.array_equal(run(parse(NEG), {"x": x})["y"], -x)


def test_a_killed_child_answers_nothing() -> None:
    child = Child("cpu")
    child.kill()
    assert not child.alive()


@pytest.mark.cuda
def test_cuda_really_runs() -> None:
    session = open_session(
        parse("g (float[2,2] x) => (float[2,2] y) { y = MatMul(x, x) }"), provider="cuda"
    )
    assert session.providers[0] == "CUDAExecutionProvider"
    assert session.placement.get("CUDAExecutionProvider", 0) >= 1
    assert np.array_equal(session.run({"x": np.eye(2, dtype=np.float32)})["y"], np.eye(2))


@pytest.mark.cuda
def test_a_model_without_a_cuda_kernel_is_refused() -> None:
    model = parse("g (string[2] x) => (string[2] y) { y = StringConcat(x, x) }")
    with pytest.raises(RunFailed, match="no node of the model runs on CUDAExecutionProvider"):
        open_session(model, provider="cuda")


def test_without_onnxruntime_the_error_says_how_to_get_it(tmp_path: Any) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'onnxruntime'\")"
    )
    code = """
import onnx
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import versions
try:
    versions()
except InputError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    assert "pip install onnxruntime (or" in done.stdout


# runs ENDLESS as a session's first request, so that the child computes when the parent ends
PARENT = f"""
import numpy as np
from onnxgrad.verify.running.child_process import pooled
from onnxgrad.verify.running.session import open_session
from tests.helpers import parse

session = open_session(parse({ENDLESS!r}))
feeds = {{"n": np.array(2**40), "x": np.zeros((300, 300), np.float32)}}
print(pooled("cpu").process.pid, flush=True)
session.run(feeds, timeout=100)
"""


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds; a zombie that nobody reaps has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_dies_with_its_parent(number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)  # into the run
    parent.send_signal(number)
    assert parent.wait(20) != 0
    parent.communicate()
    assert gone(child)


def test_an_interrupted_request_leaves_no_answer_behind() -> None:
    session = open_session(parse(NEG))
    before = pooled("cpu")

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Interrupted):
            run(parse(ENDLESS), {"n": np.array(2**40), "x": np.zeros((300, 300), np.float32)})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert not before.alive()
    assert session.run({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


def in_threads(*works: Callable[[], object]) -> list[BaseException]:
    """What the works raised, each in a thread of its own."""
    raised: list[BaseException] = []

    def one(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # handed on
            raised.append(error)

    threads = [threading.Thread(target=one, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.slow
def test_threads_that_share_a_child_do_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that holds much is killed when another model is opened: not between another thread's open and run."""
    monkeypatch.setattr(Child, "resident", lambda self: 1 << 60)  # every opening finds it too large
    x = np.ones(3, np.float32)
    models = [parse(f"g (float[N] x) => (float[N] y) {{ k = Constant<value_float = {i}.0>() y = Mul(x, k) }}")
              for i in range(2)]  # fmt: skip

    def work(i: int) -> None:
        session = open_session(models[i])
        for _ in range(12):
            if i:
                session = open_session(models[i])
            assert np.array_equal(session.run({"x": x})["y"], i * x)

    assert in_threads(lambda: work(0), lambda: work(1)) == []


def test_a_thread_that_waits_for_a_child_that_dies_gets_another() -> None:
    session, waiting = open_session(parse(NEG)), threading.Event()

    def lose() -> None:
        with held("cpu") as child:
            waiting.wait(10)
            time.sleep(0.2)  # by now the other one waits for the lock
            child.kill()

    def work() -> None:
        waiting.set()
        assert session.run({"x": np.ones(1, np.float32)})["y"] == -1

    assert in_threads(lose, work) == []


def test_a_complaint_that_holds_a_name_of_megabytes_takes_no_time() -> None:
    model = parse("g (float[N] x) => (float[N] y) { h = Relu(x) h = Neg(x) y = Neg(h) }")
    for node in model.graph.node:
        node.output[0] = "y" if node.output[0] == "y" else "h" * 300_000
    started = time.monotonic()
    with pytest.raises(RunFailed) as error:
        open_session(model)
    assert error.value.stage == "load" and len(error.value.reason) <= 400
    assert time.monotonic() - started < 3


def test_a_name_that_is_not_of_the_locale(tmp_path: Path) -> None:
    """It is UTF-8 all the same, or the model is sent whole, or refused in words of ours."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    feeds = {"x": np.ones(2, np.float32)}
    for name in ("é.onnx", "m\udcff.onnx"):
        onnx.save(model, tmp_path / name)
        assert run(tmp_path / name, feeds)["y"].tolist() == [2, 2]  # type: ignore[union-attr]
    assert _openable(Path("/a/\udcc3\udca9.onnx" if ascii_files() else "/a/é.onnx")) == "/a/é.onnx"
    onnx.save(
        model, tmp_path / "n.onnx", save_as_external_data=True, size_threshold=0, location="n.data"
    )
    (tmp_path / "n.onnx").rename(tmp_path / "n\udcff.onnx")
    with pytest.raises(InputError, match="opens no file whose name is not UTF-8"):
        run(tmp_path / "n\udcff.onnx", feeds)


def ascii_files() -> bool:
    """Whether this locale has no letters beyond ASCII in names of files."""
    return sys.getfilesystemencoding() == "ascii"


@pytest.mark.parametrize("stage", ["load", "run", "killed", "timeout", "memory"])
def test_a_limit_that_preparing_a_device_reaches_is_no_fault_of_its_libraries(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    class Unprepared(Child):
        def ask(self, timeout: float, verb: str, *arguments: Any) -> Any:
            raise RunFailed(stage, "no answer")

    monkeypatch.setattr(Child, "ask", Unprepared.ask)
    limit = stage in ("timeout", "memory")
    with pytest.raises(RunFailed if limit else InputError, match="no answer") as error:
        _preload(Child.__new__(Child))
    assert limit or "the libraries of the provider cannot be loaded" in str(error.value)


def test_a_process_does_not_die_of_a_warning():
    warning = (
        "\x1b[0;93m2026-11-23 22:30:19.122 [W:onnxruntime:Default, roialign.h:139] wrong\x1b[m"
    )
    assert last_words(f"{warning}\n") == ""
    assert (
        last_words(f"terminate called: bad_alloc\n{warning}\n\n") == "terminate called: bad_alloc"
    )
    assert last_words("\x1b[1;31m2026-11-23 [E:onnxruntime:, x.cc:3] no\x1b[m") == (
        "2026-11-23 [E:onnxruntime:, x.cc:3] no"
    )


def test_a_run_of_courtesy_has_ten_times_the_longest_run() -> None:
    session = open_session(parse("g (float[2] x) => (float[2] y) { y = Neg (x) }"))
    assert session.courtesy > 300  # no run is known
    session.run({"x": np.zeros(2, np.float32)})
    assert session.courtesy == 2.0
    session._seconds.append(3.0)
    assert session.courtesy == 30.0
