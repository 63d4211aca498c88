"""`main` itself, and a few calls through a real process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.cli import app
from onnxgrad.cli.commands import inspect
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InternalError
from onnxgrad.verify.running.child_process import close
from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]


def process(
    *words: object, stdin: bytes = b"", path: Path | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """`python -m onnxgrad ...`; `path` comes first among the folders that modules are imported from."""
    folders = [str(p) for p in (path, ROOT) if p is not None]
    return subprocess.run(
        [sys.executable, "-m", "onnxgrad", *map(str, words)],
        input=stdin, capture_output=True, timeout=120, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **env},
    )  # fmt: skip


def test_help_and_version(run: Run) -> None:
    done = run("--help")
    assert done.code == 0 and all(name in done.out for name in COMMANDS)
    assert run("--version").out.startswith("onnxgrad 0.")
    for name in COMMANDS:
        assert run(name, "--help").code == 0


def test_no_words_at_all(run: Run) -> None:
    """The help, but where stdout goes somewhere, nothing of it goes there."""
    done = run()
    assert done.code == 2 and done.out == "" and done.err == run("--help").out


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("a\nb"), 3, "internal error: RuntimeError: a b; please report"),
        (MemoryError(), 1, "not proved: the work needs more memory than this process may have"),
        (
            InternalError("rule x does not end"),
            3,
            "internal error: rule x does not end; please report",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "f"), 2, "f: No space left on device"),
    ],
)
def test_every_outcome_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(inspect, "run", fail)
    done = run("inspect", "model.onnx")
    assert done.code == code and len(done.lines) == 1 and words in done.err
    verbose = run("inspect", "model.onnx", "-v")
    assert verbose.code == code and "Traceback" in verbose.err


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m onnxgrad inspect --text models/unet.onnx"
    script = f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=120, cwd=ROOT)
    assert (
        done.returncode in (0, app.PIPE_CLOSED)
        and done.stderr == b""
        and done.stdout.count(b"\n") == 1
    )


@pytest.mark.slow
def test_stdin_to_stdout(branches: Path) -> None:
    done = process("optimize", "-", "-o", "-", "--merge", "always", stdin=branches.read_bytes())
    assert done.returncode == 0
    model = onnx.load_model_from_string(done.stdout)
    assert [n.op_type for n in model.graph.node].count("MatMul") == 1
    assert b"equal on cpu" in done.stderr


def test_bad_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["inspect", "-"], ["optimize", "-", "--dry-run"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no model at all")))
        done = run(*words)
        assert done.code == 2 and len(done.lines) == 1 and "stdin" in done.err


def test_colours(run: Run, branches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" not in run("inspect", branches).out
    assert "\x1b[" in run("inspect", branches, "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("inspect", branches).out
    assert "\x1b[" not in run("inspect", branches, "--color", "never").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("inspect", branches).out


def test_a_terminal_that_knows_only_ascii(branches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(stream, encoding="ascii"))
    code = app.main(["optimize", str(branches), "--dry-run", "--merge", "always"])
    sys.stdout.flush()
    assert code == 0 and b"MatMul" in streams["stdout"].getvalue()
    assert streams["stdout"].getvalue().isascii() and streams["stderr"].getvalue() == b""


@pytest.fixture
def without_onnxruntime(tmp_path: Path) -> Path:
    """A folder whose `onnxruntime` cannot be imported, as if none were installed."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "onnxruntime.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')\n"
    )
    return folder


# several commands in one process, which begins as `python -m onnxgrad` does: code, stdout and stderr of each
SEVERAL = """
import contextlib, io, json, sys
from onnxgrad.__main__ import main
done = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


@pytest.mark.slow
def test_without_onnxruntime(without_onnxruntime: Path, branches: Path, tmp_path: Path) -> None:
    out, refused_out = str(tmp_path / "out.onnx"), tmp_path / "refused.onnx"
    commands = [
        ["optimize", str(branches), "-o", str(refused_out)],
        ["optimize", str(branches), "-o", out, "--no-verify", "--merge", "always"],
        ["inspect", out],
        ["doctor"],
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(without_onnxruntime), str(ROOT)])}
    found = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(commands)],
        capture_output=True, timeout=120, cwd=ROOT, env=env, check=True,
    )  # fmt: skip
    assert found.stderr == b""
    refused, done, inspected, doctor = (Result(*each) for each in json.loads(found.stdout))
    assert refused.code == 2 and refused.err.count("\n") == 1 and not refused_out.exists()
    assert "pip install onnxruntime (or" in refused.err and "--no-verify" in refused.err
    assert done.code == 0 and done.err == ""
    assert [n.op_type for n in onnx.load(out).graph.node].count("MatMul") == 1
    assert inspected.code == 0
    assert doctor.code == 2 and doctor.err.count("\n") == 1
    assert "pip install onnxruntime (or" in doctor.err and "onnxgrad-" not in doctor.err


# their constants are such that numpy may not fold all of them
NOT_BY_NUMPY = ("llama.raw", "whisper.raw")


@pytest.mark.parametrize("which", ["whisper.raw", pytest.param("*", marks=pytest.mark.slow)])
def test_what_numpy_cannot_fold_stays_without_onnxruntime(
    which: str,
    run: Run,
    without_onnxruntime: Path,
    models_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close()
    monkeypatch.syspath_prepend(str(without_onnxruntime))  # for the child, which is given our path
    try:
        for name in [p.stem for p in sorted(models_dir.glob(f"{which}.onnx"))]:
            done = run(
                "optimize", models_dir / f"{name}.onnx", "-o", tmp_path / "o.onnx", "--no-verify"
            )
            said = "some constants stay as they are: onnxruntime is not installed" in done.err
            assert (done.code, said) == (0, name in NOT_BY_NUMPY), (name, done.err)
            assert done.err.count("\n") == said
    finally:
        close()


@pytest.mark.slow
def test_real_models_by_glob(tmp_path: Path, models_dir: Path) -> None:
    done = process(
        "optimize",
        models_dir / "bert.*onnx",
        models_dir / "mobilenet_v2.raw.onnx",
        "--out-dir",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "bert.onnx",
        "bert.raw.onnx",
        "mobilenet_v2.raw.onnx",
    ]
    ops = [n.op_type for n in onnx.load(tmp_path / "mobilenet_v2.raw.onnx").graph.node]
    assert "BatchNormalization" not in ops and "CastLike" not in ops


def test_switches_may_stand_before_the_command(run: Callable[..., Result]) -> None:
    model = str(ROOT / "models" / "lstmcell.onnx")
    assert run("-v", "inspect", model).out == run("inspect", model, "-v").out
    assert run("-q", "--verbose", "inspect", model) == Result(0, "", "")
    assert run("-v").code == 2
