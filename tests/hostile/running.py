"""Runs the command line on hostile files, in a worker process that a hang or a crash may take with it.

`sweep(jobs)` answers what went wrong, which should be nothing: an exit code other than 0, 1 or 2, more than one line on
stderr, a traceback, control characters, time over the limit, a file that was changed, left behind or read outside.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InternalError, OnnxgradError
from onnxgrad.vocabulary import STEP_FILES
from tests.helpers import ROOT
from tests.hostile.models import SECRET

TIMEOUT = 10.0  # of the commands; a worker that takes three times as long for one is killed
ADDRESS_SPACE = 6_000_000  # KiB
_OUTPUT = ("out.onnx",)
IN_PYTHON = "python: "  # and the name of a function
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

STEP = {f"step/{name}" for name in STEP_FILES}

# a command on `model.onnx` in the current folder -> the files that it may write
QUICK: dict[str, tuple[list[str], set[str]]] = {
    "inspect": (["inspect", "model.onnx", "-v"], set()),
    "text": (["inspect", "model.onnx", "--text"], set()),
    "optimize": (["optimize", "model.onnx", "-o", "out.onnx", "--no-verify", "-v"], {"out.onnx"}),
    "legalize": (["optimize", "model.onnx", "-o", "out.onnx", "--no-verify", "--preset", "legalize"], {"out.onnx"}),
    "inline": (["optimize", "model.onnx", "--dry-run", "--no-verify", "--inline", "*", "--explain"], set()),
    "grad": (["grad", "model.onnx", "-o", "out.onnx", "--no-verify", "--adjoint", "input"], {"out.onnx"}),
    "params": (["grad", "model.onnx", "-o", "out.onnx", "--no-verify", "--wrt", "params", "--adjoint", "input"], {"out.onnx"}),
    "diff": (["diff", "model.onnx", "model.onnx", "-v"], set()),
    "place": (["place", "model.onnx", "-o", "out.onnx", "--device", "cuda=*", "--ir"], {"out.onnx"}),
    "mark": (["grad", "model.onnx", "-o", "out.onnx", "--mark", "--checkpoint", "auto"], {"out.onnx"}),
    "checkpoint": (
        ["grad", "model.onnx", "-o", "out.onnx", "--no-verify", "--checkpoint", "auto", "--ste", "--adjoint", "input"],
        {"out.onnx"},
    ),
    "open-batch": (["open-batch", "model.onnx", "-o", "out.onnx", "--no-verify"], {"out.onnx"}),
    "vmap": (["vmap", "model.onnx", "-o", "out.onnx", "--no-verify"], {"out.onnx"}),
    "edit": (["edit", "model.onnx", "-o", "out.onnx", "--no-verify", "--rename", "x=other", "--drop-output", "y"], {"out.onnx"}),
    "join": (["join", "model.onnx", "model.onnx", "-o", "out.onnx", "--no-verify", "--prefix", "b."], {"out.onnx"}),
    "preprocess": (["preprocess", "model.onnx", "-o", "out.onnx", "--no-verify", "--after", "y=softmax"], {"out.onnx"}),
    "lift": (["lift", "model.onnx", "-o", "out.onnx", "--no-verify", "--prepare", "once.onnx", "--weights", "*w*"], {"out.onnx", "once.onnx"}),
    "lora": (["lora", "model.onnx", "-o", "out.onnx", "--no-verify", "--targets", "*", "--rank", "1"], {"out.onnx"}),
    "reduce": (["reduce", "model.onnx", "-o", "out.onnx", "--check", "false"], {"out.onnx"}),
    "weights": (["inspect", "model.onnx", "--weights", "--json", "found.json"], {"found.json"}),
    "convert-opset": (["convert-opset", "model.onnx", "-o", "out.onnx", "--to", "21", "--no-verify"], {"out.onnx"}),
    "float16": (["float16", "model.onnx", "-o", "out.onnx", "--no-verify"], {"out.onnx"}),
    "extract": (["extract", "model.onnx", "-o", "out.onnx", "--no-verify", "--outputs", "y"], {"out.onnx"}),
    "metadata": (["metadata", "model.onnx", "-o", "out.onnx", "--set", "a=b"], {"out.onnx"}),
    "train-step": (["train-step", "model.onnx", "-o", "step", "--no-verify", "--loss", "mse{output=y}"], STEP),
    "step of y": (["train-step", "model.onnx", "-o", "step", "--no-verify", "--loss", "y", "--optimizer", "sgd"], STEP),
    "split": (["grad", "model.onnx", "--no-verify", "--split", "out.onnx", "back.onnx"], {"out.onnx", "back.onnx", "back.json"}),
    "jvp": (["grad", "model.onnx", "-o", "out.onnx", "--no-verify", "--jvp"], {"out.onnx"}),
    "hvp": (["grad", "model.onnx", "-o", "out.onnx", "--no-verify", "--hvp"], {"out.onnx"}),
}  # fmt: skip
PROVING: dict[str, tuple[list[str], set[str]]] = {
    "prove": (["optimize", "model.onnx", "-o", "out.onnx"], {"out.onnx"}),
    "each": (["optimize", "model.onnx", "-o", "out.onnx", "--verify", "each"], {"out.onnx"}),
    "verify": (["verify", "model.onnx", "model.onnx"], set()),
    "check-grad": (["check-grad", "model.onnx"], set()),
    "bench": (["bench", "model.onnx", "--rounds", "1", "--seconds", "0.01"], set()),
    "grad and proof": (
        ["grad", "model.onnx", "-o", "out.onnx", "--adjoint", "input"],
        {"out.onnx"},
    ),
}
COMMANDS = QUICK | PROVING
_LIMIT: dict[str, Any] = {"timeout": TIMEOUT}
_UNPROVED: dict[str, Any] = {"verify": False, **_LIMIT}
# the same jobs as Python functions of a path or a ModelProto
FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "load": lambda m: str(onnxgrad.load(m).main),
    "inspect": lambda m: onnxgrad.inspect(m, **_LIMIT).to_dict(),
    "optimize": lambda m: onnxgrad.optimize(m, merge="always", **_UNPROVED),
    "gradient": lambda m: onnxgrad.gradient(m, adjoint="auto", **_LIMIT),
    "params": lambda m: onnxgrad.gradient(m, "params", "y", adjoint="auto", **_LIMIT),
    "every input": lambda m: onnxgrad.gradient(m, "*", adjoint="auto", **_LIMIT),
    "linearize": lambda m: onnxgrad.linearize(m, **_LIMIT),
    "jvp": lambda m: onnxgrad.jvp(m, **_LIMIT),
    "jacobian": lambda m: onnxgrad.jacobian(m, **_LIMIT),
    "hvp": lambda m: onnxgrad.hessian_vector_product(m, **_LIMIT),
    "mark_checkpoints": lambda m: onnxgrad.mark_checkpoints(m, **_LIMIT),
    "training_step": lambda m: onnxgrad.training_step(m, "mse{output=y}", **_LIMIT),
    "vmap": lambda m: onnxgrad.vmap(m, **_UNPROVED),
    "open_batch": lambda m: onnxgrad.open_batch(m, **_UNPROVED),
    "extract": lambda m: onnxgrad.extract(m, outputs=["y"], **_UNPROVED),
    "edit": lambda m: onnxgrad.edit(m, rename={"x": "other"}, **_UNPROVED),
    "join": lambda m: onnxgrad.join(m, m, prefix="b.", **_UNPROVED),
    "preprocess": lambda m: onnxgrad.preprocess(m, after={"y": "softmax"}, **_UNPROVED),
    "lift": lambda m: onnxgrad.lift(m, ["*w*"], **_UNPROVED),
    "convert_opset": lambda m: onnxgrad.convert_opset(m, 21, **_UNPROVED),
    "float16": lambda m: onnxgrad.float16(m, **_UNPROVED),
    "place": lambda m: onnxgrad.place(m, {"cuda": "*"}, **_LIMIT),
    "diff": lambda m: onnxgrad.diff(m, m, **_LIMIT).to_dict(),
    "verify": lambda m: onnxgrad.verify(m, m, **_LIMIT).to_dict(),
    "check_gradient": lambda m: onnxgrad.check_gradient(m, **_LIMIT),
}


@dataclass(frozen=True)
class Job:
    """One file and the commands to try on it; `name` is that of the file in the folder."""

    title: str
    content: bytes
    commands: tuple[str, ...]
    words: tuple[str, ...] = ()  # in place of `commands`
    config: bytes | None = None


def sweep(jobs: Iterable[Job]) -> Iterator[tuple[Job, str, str]]:
    """(job, command, what went wrong) of every failure."""
    worker: _Worker | None = None
    try:
        for job in jobs:
            for command in job.commands or ("words",):
                worker = worker or _Worker()
                wrong = worker.ask(job, command)
                if wrong:
                    yield job, command, wrong
                if worker.lost:
                    worker = None
    finally:
        if worker is not None:
            worker.end()


class _Worker:
    """A process that runs commands one after the other."""

    def __init__(self) -> None:
        self.lost = False
        # argparse looks for its translations anew in each parser, unless there are none
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": tempfile.gettempdir(),
            "LANGUAGE": "C",
        }
        shell = f"ulimit -v {ADDRESS_SPACE}; exec {sys.executable} -m tests.hostile.running"
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        self.process = subprocess.Popen(
            ["bash", "-c", shell],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def ask(self, job: Job, command: str) -> str:
        """What went wrong; empty where nothing did."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            words, written = COMMANDS.get(
                command, (list(job.words), set(_OUTPUT).intersection(job.words))
            )
            if command.startswith(IN_PYTHON):
                words, written = [IN_PYTHON, command.removeprefix(IN_PYTHON)], set()
            words = [*words, "--config", "recipe.toml"] if job.config is not None else words
            if IN_PYTHON not in words and not any(w.startswith("--timeout") for w in words):
                words = [*words, "--timeout", str(TIMEOUT)]
            calls = 2 if IN_PYTHON in words else 1  # of a function, each with its own limit
            before = _furnish(Path(folder), job)
            request = {
                "folder": str(Path(folder) / "room"),
                "words": words,
                "written": sorted(written),
            }
            try:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                answer = self._answer(3 * TIMEOUT * calls)
            except (BrokenPipeError, EOFError):
                self.errors.seek(0)
                said = self.errors.read()[-500:].decode("utf-8", "replace")
                self.end()
                return f"the process died with {self.process.returncode}: {said}"
            except TimeoutError:
                self.end()
                return f"hangs: over {3 * TIMEOUT * calls:g} s"
            if answer["seconds"] > 2 * TIMEOUT * calls:
                return f"took {answer['seconds']:.0f} s"
            return _judge(answer, before, Path(folder), written)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            if not waiting.select(seconds):
                raise TimeoutError
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """Kill it."""
        self.lost = True
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _furnish(folder: Path, job: Job) -> dict[str, bytes]:
    """The files around the model: `room` is the current folder, the secret lies beside it."""
    room = folder / "room"
    (room / "folder").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(SECRET)
    (room / "model.onnx").write_bytes(
        job.content.replace(b"{secret}", str(folder / "secret.bin").encode()[:8])
    )
    (room / "good.bin").write_bytes(bytes(24))
    (room / "folder" / "inner.bin").write_bytes(bytes(24))
    (room / "link").symlink_to("../secret.bin")
    (room / "linkdir").symlink_to("..")
    (room / "loop").symlink_to("loop")
    os.link(room / "good.bin", room / "hard")
    os.mkfifo(room / "fifo")
    with (room / "sparse.bin").open("wb") as sparse:
        sparse.truncate(1 << 34)
    if job.config is not None:
        (room / "recipe.toml").write_bytes(job.config)
    return _files(folder)


def _files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink() and path.name != "sparse.bin"
        found[str(path.relative_to(folder))] = path.read_bytes() if plain else b""
    return found


def _judge(
    answer: dict[str, Any], before: dict[str, bytes], folder: Path, written: set[str]
) -> str:
    code, out, err = answer["code"], answer["out"], answer["err"]
    lines = err.splitlines()
    if code not in (0, 1, 2):
        return f"exit {code}: {err[-300:]}"
    if "Traceback" in out + err and "-v" not in answer["words"]:
        return "a traceback"
    complaints = [line for line in lines if line.startswith("onnxgrad: ")]
    if code == 2 and len(complaints) != 1:
        return f"exit 2 with {len(complaints)} lines that say why: {err[-300:]}"
    if code == 2 and len(complaints[0]) > 2000:
        return f"a line of {len(complaints[0])} characters"
    if code == 1 and not complaints and not out:
        return "exit 1 without a word"
    if _CONTROL.search(out.replace("\n", "").replace("\t", "")) or _CONTROL.search(
        err.replace("\n", "")
    ):
        return f"control characters: {(_CONTROL.search(out + err) or [''])[0]!r}"
    after = _files(folder)
    for name, content in before.items():
        if after.pop(name, None) != content:
            return f"{name} was changed"
    allowed = {f"room/{name}" for name in written} if code == 0 else set()
    allowed |= {str(Path(name).parent) for name in allowed}
    extra = [name for name in after if name not in allowed and not (code == 0 and ".onnx." in name)]
    if extra:
        return f"left behind: {extra}"
    if (
        any(SECRET[:20] in content for content in after.values())
        or SECRET[:20].decode() in out + err
    ):
        return "the secret was read"
    return "no output" if code == 0 and written and not after else ""


def _call(name: str) -> int:
    """Calls a function on the file and on the protobuf. Returns the exit code of its error; every other exception
    passes.
    """
    model: Any = "model.onnx"
    for _ in range(2):
        try:
            FUNCTIONS[name](model)
        except OnnxgradError as error:
            if isinstance(error, InternalError):
                raise
            if "\n" in str(error) or not str(error):
                raise AssertionError(f"not one line: {error}") from error
        model = onnx.ModelProto.FromString(Path("model.onnx").read_bytes())
    return 0


def _serve() -> None:
    """Requests from stdin, a line each."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        os.chdir(request["folder"])
        started = time.monotonic()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                words = request["words"]
                code: Any = _call(words[1]) if words[0] == IN_PYTHON else main(words)
            except BaseException as error:  # noqa: BLE001  # what main lets through is what we look for
                code = f"{type(error).__name__}: {error}"
        os.chdir("/")
        answer = {
            "code": code,
            "out": out.getvalue(),
            "err": err.getvalue(),
            "words": request["words"],
        }
        channel.write(
            json.dumps({**answer, "seconds": time.monotonic() - started}).encode() + b"\n"
        )
        channel.flush()


def every(commands: Sequence[str]) -> Iterator[Job]:
    """All hostile models through `commands`, then recipes and options."""
    from onnx import ModelProto

    from tests.hostile.models import cases, recipes, relu, words

    for title, made in cases():
        content = made.SerializeToString() if isinstance(made, ModelProto) else made
        yield Job(title, content, tuple(commands))
    good = relu().SerializeToString()
    for title, config in recipes():
        yield Job(f"recipe: {title}", good, (), ("optimize", "model.onnx", "--dry-run"), config)
    for title, given in words():
        yield Job(f"words: {title}", good, (), tuple(given))


if __name__ == "__main__":
    _serve()
