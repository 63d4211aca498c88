"""Are new weights in an optimised model those of optimising anew, and how much faster?
`python scripts/bench_rebase.py [--write] [--rounds N] [MODEL ...]` (default: models/).

Three trainings of each architecture are simulated: the file as it is, and all of its weights drawn
twice at random. The record of the file, and that of the first draw, receive the second draw. A
draw keeps the mean, the spread and the sign of each weight that has one sign; numbers of formulas,
masks and sizes stay. Facts are those about weights that rewrites relied on. Without proof, times
are CPU times of functions in one process, the smallest of all rounds: `optimize` from the protobuf
to the protobuf, `rebase` from the optimised protobuf and the file of the record. With proof, they
are seconds of one round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.errors import InputError, NotProved  # noqa: E402
from onnxgrad.ir.load import load_own  # noqa: E402
from onnxgrad.ir.protobufs import copy_of  # noqa: E402
from onnxgrad.ir.save import to_proto  # noqa: E402
from onnxgrad.jobs.declarations import OptimizeOptions  # noqa: E402
from onnxgrad.jobs.hooks import Hooks  # noqa: E402
from onnxgrad.jobs.optimize import optimize  # noqa: E402
from onnxgrad.jobs.rebasing.constants import set_elements  # noqa: E402
from onnxgrad.jobs.rebasing.outline import initializers  # noqa: E402
from onnxgrad.jobs.rebasing.rebase import rebase  # noqa: E402
from onnxgrad.jobs.rebasing.record import PredicateFailed  # noqa: E402
from onnxgrad.jobs.rebasing.recording import Recording  # noqa: E402
from onnxgrad.jobs.surgery.declarations import RebaseOptions  # noqa: E402
from scripts.records import write_record  # noqa: E402


def redrawn(model: ModelProto, seed: int) -> ModelProto:
    """Returns the architecture with other weights."""
    rng, made = np.random.default_rng(seed), copy_of(model)
    weights = Recording(load_own(model)).weights
    for name, tensor in initializers(made):
        if name in weights:
            set_elements(tensor, _drawn(numpy_helper.to_array(tensor), rng))
    return made


def _drawn(old: Any, rng: np.random.Generator) -> Any:
    if old.dtype.kind != "f" or not old.size:
        return old
    spread = float(np.std(old)) or 0.1 * float(np.abs(old).mean()) or 0.1
    new = old.mean(dtype=np.float64) + spread * rng.normal(size=old.shape)
    if (old > 0).all() or (old < 0).all():
        new = old * np.exp(0.3 * rng.normal(size=old.shape))
    return np.asarray(new, old.dtype)


def _seconds(function: Callable[[], Any], rounds: int = 0) -> tuple[float, Any]:
    """Returns the CPU seconds of the fastest of all rounds, without rounds the seconds of one."""
    clock = time.process_time if rounds else time.perf_counter
    times, found = [], None
    for _ in range(rounds or 1):
        started = clock()
        found = function()
        times.append(clock() - started)
    return min(times), found


class _Measured:
    """The results of one model."""

    def __init__(self, path: Path, rounds: int, folder: Path) -> None:
        self.path, self.rounds, self.folder = path, rounds, folder
        base = onnx.load(path)
        self.first, self.second = redrawn(base, 1), redrawn(base, 2)
        self.time, self.anew = _seconds(lambda: self._anew(False), rounds)
        self.kept = [self._held(model) for model in (base, self.first)]
        self.proved, _ = _seconds(lambda: self._anew(True))

    def _anew(self, verify: bool) -> ModelProto:
        outcome = optimize(self.second, OptimizeOptions(verify=verify), Hooks())
        return to_proto(outcome.program)

    def _held(self, model: ModelProto) -> str:
        """What became of the second draw in the optimised `model`."""
        done = onnxgrad.optimize(model, rebasable=True, report=True, verify=False)
        self.rewrites, self.facts = len(done.rewrites), len(done.record.held)
        file = self.folder / "record"
        file.write_bytes(done.record.to_bytes())
        self.bytes = file.stat().st_size

        def again(verify: bool = False) -> ModelProto:
            options = RebaseOptions(verify=verify, record=file)
            return to_proto(rebase(done.model, self.second, options, Hooks()).program)

        try:
            self.rebased, found = _seconds(again, self.rounds)
        except PredicateFailed as error:
            broken = len({text.partition(" needs ")[0] for text in error.missing})
            share = 1 - broken / max(self.rewrites, 1)
            return f"{broken} of {self.rewrites} rewrites do not hold ({share:.1%} do)"
        self.with_proof, _ = _seconds(lambda: again(True))
        return "equal bytes" if found == self.anew else "other bytes"

    def row(self) -> str:
        ratio, proved = self.rebased / self.time, self.with_proof / self.proved
        cells: Sequence[Any] = (
            self.path.stem, self.rewrites, self.facts, *self.kept, f"{self.bytes / 1024:.0f}",
            f"{1000 * self.time:.0f}", f"{1000 * self.rebased:.0f}", f"{ratio:.2f}",
            f"{self.proved:.2f}", f"{self.with_proof:.2f}", f"{proved:.2f}",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


_HEAD = (
    "model", "rewrites", "facts", "record of the file", "record of a draw", "record KiB",
    "optimize ms", "rebase ms", "ratio", "optimize, proved s", "rebase, proved s", "ratio",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", metavar="NAME", help="write scripts/results/NAME.md")
    given = parser.parse_args()
    lines = [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}"]
    for path in given.models or sorted((ROOT / "models").glob("*.onnx")):
        try:
            with tempfile.TemporaryDirectory() as folder:
                lines.append(_Measured(path, given.rounds, Path(folder)).row())
        except (InputError, NotProved) as error:
            lines.append(f"| {path.stem} | {str(error)[:200]} |" + " |" * (len(_HEAD) - 2))
        print(lines[-1], flush=True)
    if given.write:
        lines += ["", "`record of the file`: what became of the second draw in the optimised file."]
        print(write_record(given.write, lines))


if __name__ == "__main__":
    main()
