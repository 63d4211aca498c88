"""CPU time of this checkout against another one, on models/: reading, `optimize` without its proof,
`gradient`.

    python scripts/bench_against.py ../other-checkout [--rounds 7] [--only bert] [--work load
    optimize gradient]

Both run in turns, each in its own process, so that other load of the machine affects both alike.
Each line has the medians in milliseconds and their ratio; the last line has the geometric mean of
the ratios for each kind of work.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KINDS = ("load", "optimize", "gradient")


def work(kind: str, path: str) -> float:
    """Returns the CPU seconds of one piece of work, or -1 if it fails for this model."""
    import onnxgrad

    began = time.process_time()
    try:
        if kind == "load":
            onnxgrad.load(path)
        elif kind == "optimize":
            onnxgrad.optimize(path, verify=False)
        else:
            onnxgrad.gradient(path, target=0, adjoint="input")
    except onnxgrad.OnnxgradError:
        return -1.0
    return time.process_time() - began


def serve() -> None:
    """Answers each line `kind path` with its seconds, until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        kind, path = line.rstrip("\n").split(" ", 1)
        print(work(kind, path), file=answers, flush=True)


class Checkout:
    """A process that imports the package of one checkout."""

    def __init__(self, top: Path) -> None:
        environment = dict(os.environ, PYTHONPATH=str(top))
        command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, kind: str, path: Path) -> float:
        assert self.process.stdin and self.process.stdout
        print(kind, path, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--work", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.other is None:
        parser.error("name the checkout to compare with")
    there, here = Checkout(arguments.other.resolve()), Checkout(HERE)
    for kind in arguments.work:
        ratios = []
        for path in sorted((HERE / "models").glob("*.onnx")):
            if arguments.only not in path.name:
                continue
            times = [
                (there.ask(kind, path), here.ask(kind, path)) for _ in range(arguments.rounds + 1)
            ][1:]
            before, after = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(b / a for a, b in times)
            if min(before, after) > 0:
                ratios.append(ratio)
                print(
                    f"{kind:9} {path.name:26} {before * 1e3:8.1f} {after * 1e3:8.1f} ms "
                    f"{ratio:6.2f}"
                )
            elif max(before, after) > 0:
                print(
                    f"{kind:9} {path.name:26} {'fails' if before < 0 else 'works'} there and not "
                    "here, or the reverse"
                )
        if ratios:
            print(
                f"{kind:9} {'geometric mean':26} {statistics.geometric_mean(ratios):28.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
