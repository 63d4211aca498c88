"""`reduce`: finds the smallest model that still has some property, by delta debugging.

Candidates (`smaller`) are tried in a fixed order. The first one that is valid, smaller or simpler,
and still has the property replaces the model, and its step continues from there. The rounds end
when no candidate helps any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from onnx import ModelProto, TypeProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import load
from onnxgrad.ir.protobufs import model_nodes
from onnxgrad.ir.types import type_to_proto
from onnxgrad.limits import current
from onnxgrad.verify.reducing.candidates import STEPS, plainness, pruned

Interesting = Callable[[ModelProto], bool]


@dataclass
class Reduction:
    """The result of `reduce`: the smallest model, the number of checked candidates, and whether the
    time sufficed.
    """

    model: ModelProto
    checked: int = 0
    invalid: int = 0
    finished: bool = True
    steps: dict[str, int] = field(default_factory=dict)  # step -> how often it helped


def reduce(
    model: ModelProto,
    interesting: Interesting,
    *,
    seconds: float = float("inf"),
    on_step: Callable[[str, ModelProto, int], None] | None = None,
) -> Reduction:
    """Returns the smallest model that is `interesting`. `model` itself must be interesting and
    contain its weights; it is not changed.

    Every candidate is valid: it loads, and passes as strict a check by onnx as the given model.
    `seconds` limits the time; the result is the smallest model until then. The same model and the
    same answers of `interesting` give the same result.
    """
    return _Reducer(
        model, interesting, time.monotonic() + seconds, on_step or (lambda *_: None)
    ).run()


class _Reducer:
    def __init__(
        self,
        model: ModelProto,
        interesting: Interesting,
        deadline: float,
        on_step: Callable[[str, ModelProto, int], None],
    ) -> None:
        self.found = Reduction(deepcopy(model))
        self.interesting = interesting
        self.deadline = deadline
        self.on_step = on_step
        self.seen = {_digest(model)}
        self.level = _level(model)
        self.types: dict[str, TypeProto] | None = None

    def run(self) -> Reduction:
        while True:
            before = _size(self.found.model)
            for name, _ in STEPS:
                while self._step(name):
                    self.found.steps[name] = self.found.steps.get(name, 0) + 1
                if not self.found.finished:
                    return self.found
            if _size(self.found.model) == before:
                return self.found

    def _step(self, name: str) -> bool:
        """Takes the first candidate of a step that is smaller and interesting. Returns False if
        there is none.
        """
        make = dict(STEPS)[name]
        model = self.found.model
        self.on_step(name, model, self.found.checked)
        if time.monotonic() > self.deadline:
            self.found.finished = False
            return False
        # once per model, for all steps: functions that call each other twice are slow
        if self.types is None:
            self.types = _types(model)
        size = _size(model)
        for candidate in make(model, self.types):
            if time.monotonic() > self.deadline:
                self.found.finished = False
                return False
            if self._serves(pruned(candidate), size):
                self.found.model, self.types = candidate, None
                self.on_step(name, candidate, self.found.checked)
                return True
        return False

    def _serves(self, candidate: ModelProto, size: tuple[int, ...]) -> bool:
        if _size(candidate) >= size:
            return False
        digest = _digest(candidate)
        if digest in self.seen:
            return False
        self.seen.add(digest)
        if _level(candidate) < self.level:
            self.found.invalid += 1
            return False
        self.found.checked += 1
        return self.interesting(candidate)


def _size(model: ModelProto) -> tuple[int, ...]:
    """Returns the sizes to reduce, the most important first: nodes, results and inputs, attributes,
    sizes, digits.
    """
    nodes = [*model_nodes(model)]
    # an Identity in place of another operator is progress
    weight = sum(2 if n.op_type == "Identity" else 3 for n in nodes)
    attributes = sum(len(n.attribute) + len([i for i in n.input if i]) for n in nodes)
    elements = sum(math.prod(t.dims) for t in model.graph.initializer)
    shown = sum(
        math.prod([d.dim_value or 1 for d in v.type.tensor_type.shape.dim])
        for v in model.graph.input
    )
    numbers = sum(plainness(t) for t in model.graph.initializer)
    return (
        weight,
        len(model.graph.output) + len(model.graph.input),
        attributes,
        elements + shown,
        numbers,
        model.ByteSize(),
    )


def _types(model: ModelProto) -> dict[str, TypeProto]:
    """Returns the types of the main graph's values that are complete enough for inputs."""
    try:
        values = {v.name: type_to_proto(v.type) for v in load(deepcopy(model)).main.vars()}
    except Exception:  # noqa: BLE001  # the unreadable model may be the bug: use the declared types
        values = {
            v.name: v.type
            for v in [*model.graph.input, *model.graph.value_info, *model.graph.output]
        }
    tensors = {n: t for n, t in values.items() if t.HasField("tensor_type")}
    return {
        n: t
        for n, t in tensors.items()
        if t.tensor_type.elem_type and t.tensor_type.HasField("shape")
    }


def _level(model: ModelProto) -> int:
    """Returns how valid a model is: 0 invalid, 1 readable by this package, 2 accepted by onnx's
    checker, 3 with correct types as well.
    """
    try:
        load(deepcopy(model)).main.check()
    except Exception:  # noqa: BLE001  # as in `_types`
        return 0
    for level, full in ((3, True), (2, False)):
        try:
            onnx.checker.check_model(model, full_check=full)
        except Exception:  # noqa: BLE001  # its own ValidationError and InferenceError, ValueError, RuntimeError
            continue
        return level
    return 1


def _digest(model: ModelProto) -> bytes:
    return hashlib.blake2b(model.SerializeToString(deterministic=True), digest_size=16).digest()


class Server:
    """A process that runs commands of this program one after another, so that they share its
    imports and its children. `start` is its command line. It starts again after a crash or if a
    command takes too long. Close it at the end.
    """

    def __init__(self, start: Sequence[str], folder: Path) -> None:
        self._start, self._printed = start, folder / "printed"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, words: Sequence[str], timeout: float) -> tuple[int | None, str]:
        """Returns (exit status, output), as `Command.run`."""
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(
                [*self._start, str(self._printed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(words).encode() + b"\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        if not ready:
            self.close()
            return None, ""
        line = process.stdout.readline()
        printed = self._printed.read_bytes() if self._printed.exists() else b""
        if line:
            code = int(line)
        else:
            code = process.wait()
            self.close()
        return (128 - code if code < 0 else code), printed.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends the process and all processes that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with process, contextlib.suppress(BrokenPipeError):
            process.wait()


@frozen
class Command:
    """A check by a command that runs without a shell. `words` are its words; `{}` stands for the
    model's path, which is otherwise appended.

    The model is written into `folder`. It fails if the command exits with `status` and prints
    `says`. `status` None means any status but 0; a signal counts as 128 plus its number. A command
    that takes longer than `timeout` seconds does not count as a failure.
    """

    words: Sequence[str]
    folder: Path
    status: int | None = None
    says: str = ""
    timeout: float = 60.0
    server: Server | None = None  # runs the words, if they are a command of this program

    def fails(self, model: ModelProto) -> bool:
        """Returns whether the model fails. Raises InputError if the command cannot be run."""
        return self._means(*self.run(model))

    def on_original(
        self, model: ModelProto, name: str, statuses: Collection[int] | None = None
    ) -> Command:
        """Returns the command that checks for the failure of `model`, called `name`. If `statuses`
        is given and `status` is not, the command checks for the same exit status, which must be one
        of them. Raises InputError if `model` does not fail, or if the command cannot be run.
        """
        code, printed = self.run(model)
        fails = self._means(code, printed) and code != 0
        if self.status is not None or statuses is None:
            command = self
        else:
            command, fails = replace(self, status=code), fails and code in statuses
        if fails:
            return command
        last = " ".join(printed.split()[-40:]) if code else ""  # ignored on success
        ended = f"took longer than {self.timeout:g} s" if code is None else f"ends with {code}"
        raise InputError(
            f"{name}: the check must fail on it, but it {ended}"
            + (f" and says: {last[-300:]}" if last else "")
        )

    def run(self, model: ModelProto) -> tuple[int | None, str]:
        """Returns (exit status, output); the status is None if the command took too long. Raises
        InputError if the command cannot be run.
        """
        path = self.folder / "candidate.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        words = [w.replace("{}", str(path)) for w in self.words]
        if words == list(self.words):
            words.append(str(path))
        limit = min(self.timeout, current().left())
        if self.server is not None:
            return self.server.run(words, limit)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"--check: cannot run {words[0]}: {reason}") from error
        with process:
            try:
                printed, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # and all processes that it started
        code = process.returncode
        return (128 - code if code < 0 else code), printed.decode("utf-8", "replace")

    def _means(self, code: int | None, printed: str) -> bool:
        if code is None or self.says not in printed:
            return False
        return code != 0 if self.status is None else code == self.status
