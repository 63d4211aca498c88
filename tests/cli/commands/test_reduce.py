"""`onnxgrad reduce`: a command as the check, what its exit status means, what comes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]
TEXT = """g (float[N,4] x) => (float[N,4] y, float[N,4] z) <float zero = {0}> {
  a = Neg(x) b = Tanh(a) c = Exp(b) d = Erf(c) y = Abs(d) z = Mul(c, zero) }"""
# fails with 7 where there is a Tanh, 0 otherwise
HAS_TANH = "import sys; d = open(sys.argv[1], 'rb').read(); print('sees it' * (b'Tanh' in d)); sys.exit(7 * (b'Tanh' in d))"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "big model.onnx"
    onnx.save(parse(TEXT), path)
    return path


def command(code: str, *rest: str) -> str:
    return " ".join([f"'{sys.executable}' -c \"{code}\"", *rest])


@pytest.mark.parametrize(
    ("check", "options"),
    [
        (command(HAS_TANH), []),
        (command(HAS_TANH, "{}", "ignored"), ["--interesting-exit", "7"]),
        (command(HAS_TANH), ["--says", "sees it"]),
    ],
)
def test_a_command(run: Run, model: Path, tmp_path: Path, check: str, options: list[str]) -> None:
    before, out, record = model.read_bytes(), tmp_path / "out.onnx", tmp_path / "r.json"
    done = run("reduce", model, "--check", check, "-o", out, "--json", record, *options)
    assert done.code == 0, done.err
    assert [n.op_type for n in onnx.load(out).graph.node] == [
        "Tanh"
    ] and model.read_bytes() == before
    onnx.checker.check_model(out, full_check=True)
    found = json.loads(record.read_text())
    assert (
        found["nodes"] == {"before": 6, "after": 1}
        and found["finished"]
        and "candidates checked" in done.out
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--check", command("import sys")],
            "the check must fail on it, but it ends with 0",
        ),
        (["--check", command(HAS_TANH), "--interesting-exit", "1"], "it ends with 7"),
        (
            ["--check", command(HAS_TANH), "--says", "other words"],
            "it ends with 7 and says: sees it",
        ),
        (["--check", "no-such-program-here"], "cannot run no-such-program-here"),
        (["--check", "'open"], "cannot read the command"),
        (["--check", ""], "the command is empty"),
        (
            ["--check", command("import time; time.sleep(20)"), "--check-timeout", "0.5"],
            "took longer than 0.5 s",
        ),
    ],
)
def test_nothing_to_reduce(
    run: Run, model: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    out = tmp_path / "out.onnx"
    done = run("reduce", model, "-o", out, *options)
    assert done.code == 2 and words in done.err and not out.exists() and len(done.lines) == 1


def test_a_crash_counts_as_128_and_the_signal(run: Run, model: Path, tmp_path: Path) -> None:
    crash = "import os, sys; b'Erf' in open(sys.argv[1], 'rb').read() and os.kill(os.getpid(), 11)"
    out = tmp_path / "out.onnx"
    assert (
        run("reduce", model, "--check", command(crash), "--interesting-exit", "139", "-o", out).code
        == 0
    )
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Erf"]


def test_time_bounds_it_and_what_is_found_is_written(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    check = command(f"import time; time.sleep(0.4); {HAS_TANH}")
    done = run("reduce", model, "--check", check, "-o", out, "--timeout", "0.6")
    assert done.code == 0 and "stopped by --timeout" in done.out and b"Tanh" in out.read_bytes()


def test_the_input_is_never_the_output(run: Run, model: Path) -> None:
    done = run("reduce", model, "--check", command(HAS_TANH), "-o", model)
    assert done.code == 2 and "same file" in done.err


@pytest.mark.slow
def test_a_command_of_ours(run: Run, tmp_path: Path) -> None:
    """All results NaN: `optimize` ends with 1, for nothing was compared, and the smallest model that does so is sought."""
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(
        parse(
            "g (float[4] x) => (float[4] y) <float[1] far = {-9}> { a = Sqrt(far) y = Add(x, a) }"
        ),
        path,
    )
    assert (
        run("reduce", path, "--fails", "optimize --preset nonsense", "-o", out).code == 2
        and not out.exists()
    )
    done = run("reduce", path, "--fails", "optimize", "-o", out)
    assert done.code == 0, done.err
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Sqrt"]


PLUGIN = '''"""Notes the process of each trial, and dies of a signal where there is an Erf."""
import os
from onnxgrad import P, capture, rewrite

with open({log!r}, "a") as file:
    print(os.getpid(), file=file)
x = capture("x")


@rewrite(P.Tanh(x))
def tanh_is_nothing(x):
    """Tanh(x) = x"""
    return x


@rewrite(P.Erf(x))
def crashes(x):
    """Erf(x) = crash"""
    os.kill(os.getpid(), 9)
'''


@pytest.mark.slow
def test_one_process_serves_all_trials_of_a_command_of_ours(run: Run, tmp_path: Path) -> None:
    path, out, log = tmp_path / "m.onnx", tmp_path / "out.onnx", tmp_path / "log"
    (tmp_path / "wrong.py").write_text(PLUGIN.replace("{log!r}", repr(str(log))))
    steps = "a = Neg (x) b = Sin (a) c = Neg (b) d = Tanh (c) e = Sin (d) y = Neg (e)"
    onnx.save(parse(f"g (float[N,3] x) => (float[N,3] y) {{ {steps} }}"), path)
    check = f"optimize --plugin {tmp_path / 'wrong.py'}"
    done = run("reduce", path, "--fails", check, "-o", out)
    assert done.code == 0, done.err
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Tanh"]
    processes = log.read_text().split()
    assert len(processes) > 3 and len({*processes}) == 1
    onnx.save(parse("g (float[N,3] x) => (float[N,3] y) { a = Neg (x) y = Erf (a) }"), path)
    died = run("reduce", path, "--fails", check, "--interesting-exit", "137", "-o", out)
    assert died.code == 0 and [n.op_type for n in onnx.load(out).graph.node] == ["Erf"]
