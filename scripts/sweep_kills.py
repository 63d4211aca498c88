"""End `onnxgrad optimize` at random moments while it replaces a model with external weights, and see what is left.

    python scripts/sweep_kills.py --count 100 --megabytes 200 --seed 0

Each trial starts from an older OUT, whose weights differ, and sends SIGTERM, SIGINT or SIGKILL. Whatever the moment:
the input is as it was; OUT is the old model with the old weights or the new one with the new ones; no process is left.
After SIGTERM and SIGINT there is nothing beside OUT and its weights, and nothing in the temporary folder.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path

import onnx
from onnx import TensorProto, helper

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
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
    weight = TensorProto(name="w", data_type=TensorProto.INT8, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(count))):
        weight.external_data.add(key=key, value=value)
    nodes = [helper.make_node("Identity", ["i"], ["j"]), helper.make_node("Gather", ["w", "j"], ["y"])]
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
    """A folder with an old output, a new input, and trials that replace the one by the other's result."""

    def __init__(self, scratch: Path, megabytes: int, seed: int, *words: str) -> None:
        self.random = random.Random(seed)
        self.out, self.saved, self.temporary = (scratch / name for name in ("out", "saved", "tmp"))
        self.temporary.mkdir()
        self.saved.mkdir()
        old, new = (model_with_weights(scratch / name, megabytes, seed + n) for n, name in enumerate(("old", "new")))
        self.source, self.words = new, words
        self.known: dict[str, str] = {}
        for name, source in (("old", old), ("new", new)):
            self._finish(source, self.saved / "o.onnx")
            self.known[_digest(_weights(self.saved / "o.onnx"))] = name
            if name == "old":
                shutil.copytree(self.saved, self.out)
        shutil.rmtree(self.saved)
        shutil.copytree(self.out, self.saved)
        started = time.monotonic()
        self._finish(new, scratch / "timed.onnx")
        self.seconds = time.monotonic() - started
        for path in scratch.glob("timed.onnx*"):
            path.unlink()
        self.inputs = {p: (_digest(p), p.stat().st_mtime_ns) for p in new.parent.iterdir()}

    def _finish(self, source: Path, target: Path) -> None:
        running = self._run(source, target)
        _, said = running.communicate()
        if running.returncode != 0:
            raise SystemExit(f"the command fails when nobody ends it: {said.decode()}")

    def _run(self, source: Path, target: Path) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "onnxgrad", "optimize", str(source), "-o", str(target), "-q", *self.words]
        ours = {_MARK: "1", "TMPDIR": str(self.temporary), "PYTHONPATH": str(_ROOT)}
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **ours})

    def trial(self) -> tuple[str, list[str]]:
        """One run that is ended; what OUT is then, and what is wrong."""
        number = self.random.choice(SIGNALS)
        moment = self.seconds * (self.random.random() if self.random.random() < 0.4 else self.random.uniform(0.5, 1.05))
        running = self._run(self.source, self.out / "o.onnx")
        try:
            running.wait(moment)
        except subprocess.TimeoutExpired:
            running.send_signal(number)
        _, said = running.communicate(timeout=60)
        wrong = self._faults(number, running.returncode, said)
        version = self.known.get(_digest(_weights(self.out / "o.onnx")), "mixed")
        if version == "mixed" or (running.returncode == 0 and version == "old"):
            wrong.append(f"OUT is {version}")
        if version != "old" or number == signal.SIGKILL:
            shutil.rmtree(self.out)
            shutil.copytree(self.saved, self.out)
        name = "not ended" if running.returncode == 0 else signal.Signals(number).name
        return f"{name}: OUT is {version}", [f"{name} after {moment:.3f} s of {self.seconds:.3f} s: {w}" for w in wrong]

    def _faults(self, number: int, code: int, said: bytes) -> list[str]:
        wrong = []
        if code not in (0, -number, 128 + number):
            wrong.append(f"exit code {code}")
        if b"Traceback" in said:
            wrong.append(said.decode())
        time.sleep(0.2)
        left = processes()
        if left:
            wrong.append(f"processes are left: {left}")
        if number != signal.SIGKILL or code == 0:
            beside = {p.name for p in self.out.iterdir()} - {"o.onnx", _weights(self.out / "o.onnx").name}
            beside |= {p.name for p in self.temporary.iterdir()}
            wrong += [f"left behind: {sorted(beside)}"] if beside else []
        for path in self.temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, (_, changed) in self.inputs.items():
            if path.stat().st_mtime_ns != changed:
                wrong.append(f"{path.name} has been written to")
        return wrong

    def inputs_are_whole(self) -> bool:
        """Whether every byte of the input is what it was."""
        return all(_digest(path) == digest for path, (digest, _) in self.inputs.items())


def processes() -> list[int]:
    """Those that a trial started and that still run (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ended = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if f"{_MARK}=".encode() in (entry / "environ").read_bytes() and not ended:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def sweep(count: int, megabytes: int, seed: int, *words: str) -> tuple[Counter[str], list[str]]:
    """Counts by signal and outcome, and everything that was wrong."""
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        trials = Sweep(Path(folder), megabytes, seed, *words)
        outcomes, wrong = Counter[str](), []
        for _ in range(count):
            outcome, faults = trials.trial()
            outcomes[outcome] += 1
            wrong += faults
        if not trials.inputs_are_whole():
            wrong.append("the input has changed")
    return outcomes, wrong


def main() -> None:
    """Run the sweep and print its counts; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prove", action="store_true", help="with the proof, and so with a child process")
    args = parser.parse_args()
    outcomes, wrong = sweep(args.count, args.megabytes, args.seed, *([] if args.prove else ["--no-verify"]))
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:4}  {outcome}")
    print(*wrong or ["nothing wrong"], sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
