"""Peak memory of commands that read a large model: of their own process, relative to the weights,
without the processes that run models in a proof.

    python scripts/bench_large_models.py [--gigabytes N] [--proved N] [ROW ...]

The model is a chain of MatMul whose weights lie in an external file, or in the model's own. The
first table is without proofs, the second one with them, on a model of `--proved` GB. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from records import conditions

SIDE = 4096  # of a weight: 64 MiB
COMMANDS = {
    "optimize": "optimize MODEL -o OUT/o.onnx",
    "float16": "float16 MODEL -o OUT/o.onnx",
    "convert-opset": "convert-opset MODEL --to 21 -o OUT/o.onnx",
    "extract": "extract MODEL --outputs v2 -o OUT/o.onnx",
    "rename": "edit MODEL --rename y=z -o OUT/o.onnx",
    "bind": "edit MODEL --bind c=1 -o OUT/o.onnx",
    "join": "join MODEL MODEL --map y=x --map c=c --prefix B_ -o OUT/o.onnx",
    "grad": "grad MODEL --wrt x --target y -o OUT/o.onnx",
    "grad --split": "grad MODEL --wrt x --target y --split OUT/f.onnx OUT/b.onnx",
    "grad --per-sample": "grad MODEL --wrt x --target y --adjoint input --per-sample -o OUT/o.onnx",
    "grad --jvp": "grad MODEL --wrt x --target y --jvp -o OUT/o.onnx",
    "grad --jacobian": "grad MODEL --wrt c --target y --jacobian -o OUT/o.onnx",
    "vmap": "vmap MODEL --map x -o OUT/o.onnx",
    "open-batch": "open-batch MODEL --batch 1 -o OUT/o.onnx",
    "train-step": "train-step MODEL --loss mse --wrt w0 -o OUT/step",
}
PROOFS = {
    **COMMANDS,
    "float16 --keep auto": "float16 MODEL --keep auto -o OUT/o.onnx",
    "grad --hvp": "grad MODEL --wrt x --target y[0,0] --hvp -o OUT/o.onnx",
    "grad of all weights": "grad MODEL --wrt params --target y -o OUT/o.onnx",
    "check-grad": "check-grad MODEL --wrt x --target y",
    "verify": "verify MODEL MODEL",
}


def model(folder: Path, count: int, inside: bool) -> Path:
    """Write the chain with `count` weights."""
    nodes, last = [helper.make_node("Add", ["x", "c"], ["v0"])], count - 1
    for i in range(count):
        nodes.append(
            helper.make_node("MatMul", [f"v{i}", f"w{i}"], ["y" if i == last else f"v{i + 1}"])
        )
    of = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIDE]) for n in ("x", "y")}
    scalar = helper.make_tensor_value_info("c", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [of["x"], scalar], [of["y"]])
    rng = np.random.default_rng(0)
    for i in range(count):
        row = rng.standard_normal((1, SIDE)).astype(np.float32) / SIDE
        array = np.repeat(row, SIDE, axis=0)
        graph.initializer.add(
            name=f"w{i}", data_type=TensorProto.FLOAT, dims=array.shape, raw_data=array.tobytes()
        )
    opset = [helper.make_opsetid("", 20)]
    path = folder / "model.onnx"
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.save(made, path, save_as_external_data=not inside, location="model.data")
    return path


def peak(command: list[str]) -> tuple[int, float]:
    """Run a command. Returns the peak of its own resident memory in KiB, and its seconds."""
    started, most = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            lines = status.read_text().splitlines()
            most = max([most, *(int(s.split()[1]) for s in lines if s.startswith("VmHWM"))])
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return most, time.perf_counter() - started


def table(commands: dict[str, str], rows: list[str], gigabytes: float, *more: str) -> None:
    """Print the peaks of the commands with the flags `more`."""
    count = max(3, round(gigabytes * 2**30 / (4 * SIDE * SIDE)))
    size = count * 4 * SIDE * SIDE
    print(f"\n{size / 1e9:.2f} GB of weights, {'without' if more else 'with'} a proof:\n")
    print("| command | weights in | peak, MB | peak / weights | seconds |")
    print("|---|---|---|---|---|")
    for inside in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = model(Path(folder), count, inside)
            for name in [name for name in commands if name in (rows or commands)]:
                with tempfile.TemporaryDirectory() as made:
                    words = commands[name].replace("MODEL", str(path)).replace("OUT", made).split()
                    most, seconds = peak([sys.executable, "-m", "onnxgrad", *words, *more, "-q"])
                where = "its file" if inside else "an external file"
                share = most * 1024 / size
                print(
                    f"| {name} | {where} | {most * 1024 / 1e6:.0f} | {share:.2f} | {seconds:.0f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--proved", type=float, default=0.2)
    args = parser.parse_args()
    print(conditions())
    table(COMMANDS, args.rows, args.gigabytes, "--no-verify")
    table(PROOFS, args.rows, args.proved)


if __name__ == "__main__":
    main()
