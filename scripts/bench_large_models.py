"""Peak memory of commands that read a large model and write one: of their own process, without the
processes of a proof, relative to the weights.

    python scripts/bench_large_models.py [--gigabytes N] [COMMAND ...]

The model is a chain of MatMul whose weights lie in an external file, or in the model's own. Proofs
are off: their processes hold the models. Linux only.
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

SIDE = 4096  # of a weight: 64 MiB
COMMANDS = {
    "optimize": "optimize MODEL",
    "float16": "float16 MODEL",
    "convert-opset": "convert-opset MODEL --to 21",
    "extract": "extract MODEL --outputs v2",
    "rename": "edit MODEL --rename y=z",
    "bind": "edit MODEL --bind c=1",
    "join": "join MODEL MODEL --map y=x --map c=c --prefix B_",
    "grad": "grad MODEL --wrt x --target y",
    "open-batch": "open-batch MODEL --batch 1",
    "train-step": "train-step MODEL --loss mse --wrt w0",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--gigabytes", type=float, default=1.0)
    args = parser.parse_args()
    count = max(3, round(args.gigabytes * 2**30 / (4 * SIDE * SIDE)))
    size = count * 4 * SIDE * SIDE
    print("| command | weights in | peak, MB | peak / weights | seconds |")
    print("|---|---|---|---|---|")
    for inside in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = model(Path(folder), count, inside)
            for name in args.commands:
                with tempfile.TemporaryDirectory() as made:
                    words = COMMANDS[name].replace("MODEL", str(path)).split()
                    line = [sys.executable, "-m", "onnxgrad", *words, "--no-verify", "-q", "-o"]
                    most, seconds = peak([*line, f"{made}/out.onnx"])
                where = "its file" if inside else "an external file"
                share = most * 1024 / size
                print(
                    f"| {name} | {where} | {most * 1024 / 1e6:.0f} | {share:.2f} | {seconds:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
