"""Ends `onnxgrad optimize` at random moments while it replaces a model with external weights, and
checks the files that remain.

    python scripts/sweep_kills.py --count 100 --megabytes 200 --seed 0

Each trial starts from an older OUT with other weights, and sends SIGTERM, SIGINT or SIGKILL. Only
signals that end the run count. At every moment, the input must be unchanged, OUT must be the old
model with the old weights or the new model with the new ones, and no process may remain. After
SIGTERM and SIGINT, no other file may remain beside OUT or in the temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
PHASES = ("start", "write", "write", "end")
NOT_ENDED = "not ended"
_ROOT = Path(__file__).resolve().parents[1]
_MARK = "ONNXGRAD_SWEEP"


def model_with_weights(folder: Path, megabytes: int, seed: int) -> Path:
    """A model of one product with an external weight of random bytes."""
    folder.mkdir(parents=True)
    count = megabytes << 20
    with (folder / "w.bin").open("wb") as file:
        for _ in range(megabytes):
            file.write(random.Random(seed).randbytes(1 << 20))
            seed += 1_000_003
    weight = TensorProto(
        name="w", data_type=TensorProto.INT8, dims=[count], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(count))):
        weight.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("Identity", ["i"], ["j"]),
        helper.make_node("Gather", ["w", "j"], ["y"]),
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.INT8, ["N"])
    graph = helper.make_graph(nodes, "g", [i], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        found = hashlib.blake2b()
        while piece := file.read(1 << 24):
            found.update(piece)
    return found.hexdigest()


def _weights(model: Path) -> Path:
    (weight,) = onnx.load(model, load_external_data=False).graph.initializer
    return model.with_name(next(e.value for e in weight.external_data if e.key == "location"))


class Sweep:
    """A folder with an old output and a new input, and trials that replace the output.

    A moment is in the start (a share of the time until the last whole run wrote), in the writing
    (a number of bytes beside OUT) or in the end (a share of the time after the last byte). Other
    load of the machine shifts the first and the last kind, not the second.
    """

    def __init__(self, scratch: Path, megabytes: int, seed: int, *words: str) -> None:
        self.random = random.Random(seed)
        self.out, self.saved, self.temporary = (scratch / name for name in ("out", "saved", "tmp"))
        self.temporary.mkdir()
        self.out.mkdir()
        old, new = (
            model_with_weights(scratch / name, megabytes, seed + n)
            for n, name in enumerate(("old", "new"))
        )
        self.size, self.source, self.words = megabytes << 20, new, words
        self.inputs = {p: (_digest(p), p.stat().st_mtime_ns) for p in new.parent.iterdir()}
        self.known: dict[str, str] = {}
        for name, source in (("new", new), ("old", old)):
            self._finish(source)
            self.known[_digest(_weights(self.out / "o.onnx"))] = name
        shutil.copytree(self.out, self.saved)

    def _finish(self, source: Path) -> None:
        running, started = self._run(source), time.monotonic()
        self._until(running, lambda: self._staged() >= 0)
        first = time.monotonic()
        self._until(running, lambda: self._staged() >= self.size)
        full = time.monotonic()
        _, errors = running.communicate()
        if running.returncode != 0:
            raise SystemExit(f"the command fails by itself: {errors.decode()}")
        self.before, self.after = first - started, time.monotonic() - full

    def _run(self, source: Path) -> subprocess.Popen[bytes]:
        target = str(self.out / "o.onnx")
        words = [
            sys.executable,
            "-m",
            "onnxgrad",
            "optimize",
            str(source),
            "-o",
            target,
            "-q",
            *self.words,
        ]
        ours = {_MARK: str(self.out), "TMPDIR": str(self.temporary), "PYTHONPATH": str(_ROOT)}
        return subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **ours}
        )

    def _staged(self) -> int:
        """Returns the bytes in temporary files beside OUT, or -1 if there are none."""
        sizes = [-1]
        for path in self.out.glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):  # it was renamed
                sizes.append(path.stat().st_size)
        return max(sizes)

    @staticmethod
    def _until(running: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        while not ready() and running.poll() is None:
            time.sleep(0.0005)

    def _reach(self, running: subprocess.Popen[bytes]) -> str:
        """Waits for a random moment of the run and returns its name."""
        phase, share = self.random.choice(PHASES), self.random.random()
        if phase == "start":
            time.sleep(share * self.before)
            return f"start, {share * self.before:.3f} s"
        wanted = round(share * self.size) if phase == "write" else self.size
        self._until(running, lambda: self._staged() >= wanted)
        if phase == "write":
            return f"write, {wanted} bytes"
        time.sleep(share * self.after)
        return f"end, {share * self.after:.3f} s"

    def trial(self, number: signal.Signals) -> tuple[str, list[str]]:
        """Sends a signal to one run. Returns the state of OUT, and the faults."""
        running = self._run(self.source)
        moment = self._reach(running)
        running.send_signal(number)  # no effect if it has ended
        _, errors = running.communicate(timeout=60)
        wrong = self._faults(number, running.returncode, errors)
        version = self.known.get(_digest(_weights(self.out / "o.onnx")), "mixed")
        if version == "mixed" or (running.returncode == 0 and version == "old"):
            wrong.append(f"OUT is {version}")
        if version != "old" or number == signal.SIGKILL:
            shutil.rmtree(self.out)
            shutil.copytree(self.saved, self.out)
        name = NOT_ENDED if running.returncode == 0 else number.name
        return f"{name} at the {moment.split(',')[0]}: OUT is {version}", [
            f"{name} at {moment}: {w}" for w in wrong
        ]

    def _faults(self, number: int, code: int, errors: bytes) -> list[str]:
        wrong = []
        if code not in (0, -number, 128 + number):
            wrong.append(f"exit code {code}")
        if b"Traceback" in errors:
            wrong.append(errors.decode())
        late = time.monotonic() + 5
        while (left := processes(str(self.out))) and time.monotonic() < late:
            time.sleep(0.05)
        if left:
            wrong.append(f"processes are left: {left}")
        if number != signal.SIGKILL or code == 0:
            beside = {p.name for p in self.out.iterdir()} - {
                "o.onnx",
                _weights(self.out / "o.onnx").name,
            }
            beside |= {p.name for p in self.temporary.iterdir()}
            wrong += [f"left behind: {sorted(beside)}"] if beside else []
        for path in self.temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, (_, changed) in self.inputs.items():
            if path.stat().st_mtime_ns != changed:
                wrong.append(f"{path.name} has been written to")
        return wrong

    def inputs_are_whole(self) -> bool:
        """Whether every byte of the input is unchanged."""
        return all(_digest(path) == digest for path, (digest, _) in self.inputs.items())


def processes(mark: str) -> list[int]:
    """Returns the running processes that trials with this mark started (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ended = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if f"{_MARK}={mark}\0".encode() in (entry / "environ").read_bytes() and not ended:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def sweep(count: int, megabytes: int, seed: int, *words: str) -> tuple[Counter[str], list[str]]:
    """Runs trials, with the signals in turns, until `count` of them ended a run. At most three
    times as many trials are made.

    Returns the counts by signal, phase and outcome, and all faults.
    """
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        trials = Sweep(Path(folder), megabytes, seed, *words)
        outcomes, wrong, landed = Counter[str](), [], 0
        for _ in range(3 * count):
            if landed == count:
                break
            outcome, faults = trials.trial(SIGNALS[landed % len(SIGNALS)])
            landed += not outcome.startswith(NOT_ENDED)
            outcomes[outcome] += 1
            wrong += faults
        if not trials.inputs_are_whole():
            wrong.append("the input has changed")
    return outcomes, wrong


def main() -> None:
    """Runs the sweep and prints its counts. Returns 1 if there was a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="runs that were ended")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--prove", action="store_true", help="with the proof, and so with a child process"
    )
    args = parser.parse_args()
    outcomes, wrong = sweep(
        args.count, args.megabytes, args.seed, *([] if args.prove else ["--no-verify"])
    )
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:4}  {outcome}")
    print(
        f"{sum(n for o, n in outcomes.items() if not o.startswith(NOT_ENDED))} of "
        f"{outcomes.total()} runs were ended"
    )
    print(*wrong or ["nothing wrong"], sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
