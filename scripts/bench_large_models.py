"""Peak memory of commands that read a large model, relative to the weights.

    python scripts/bench_large_models.py [--gigabytes N] [--proved N] [--table NAME] [ROW ...]

The tables `plain` and `proved` are of a command's own process, on a chain of MatMul whose weights
lie in an external file, or in the model's own: without proofs, and with them on a model of
`--proved` GB. The table `checked` is of all processes of a command, the ones that run models
included, on three models of about 0.3 GB whose weights lie in their file; ROWs are models or
commands, MODEL:COMMAND chooses one. A page that several
processes share counts once. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
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

_GRADIENT = "onnxruntime, gradient"  # a session of the gradient by all weights, as in the checks
CHECKED = {
    "onnxruntime": "",  # a session of the model, which runs once
    _GRADIENT: "",
    "verify": "verify MODEL MODEL",
    "check-grad of the input": "check-grad MODEL --wrt x --target y",
    "grad of the input": "grad MODEL --wrt x --target y -o OUT/o.onnx",
    "check-grad": "check-grad MODEL --wrt params --target y",
    "grad": "grad MODEL --wrt params --target y -o OUT/o.onnx",
    "join": "join MODEL OTHER --map y=c --prefix B_ -o OUT/o.onnx",
    "train-step": "train-step MODEL --loss mse --wrt params -o OUT/step",
    "optimize": "optimize MODEL -o OUT/o.onnx",
}
_RUN = """
import sys, numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
session.run(None, {i.name: np.zeros(i.shape, types[i.type]) for i in session.get_inputs()})
"""


def layers(count: int = 18, side: int = 2048) -> onnx.ModelProto:
    """Returns MatMul + Add + Relu, `count` times."""
    rng, weights, nodes, last = np.random.default_rng(0), {}, [], "x"
    for i in range(count):
        weights[f"w{i}"] = rng.standard_normal((side, side)) * (2 / side) ** 0.5
        weights[f"b{i}"] = rng.standard_normal(side) * 0.1
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], ["y" if i == count - 1 else f"h{i}"]),
        ]
        last = f"h{i}"
    return _model(nodes, weights, {"x": [4, side]}, [4, side])


def embedding(rows: int = 100_000, width: int = 768) -> onnx.ModelProto:
    """Returns a wide table, rows of which are multiplied by a small matrix."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((rows, width)),
        "w": rng.standard_normal((width, 64)) * width**-0.5,
    }
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Add", ["rows", "x"], ["moved"]),
        helper.make_node("MatMul", ["moved", "w"], ["products"]),
        helper.make_node("Tanh", ["products"], ["y"]),
    ]
    inputs = {"i": [4, 16], "x": [4, 16, width]}
    return _model(nodes, weights, inputs, [4, 16, 64])


def convnet(count: int = 8, channels: int = 1024) -> onnx.ModelProto:
    """Returns Conv + Relu, `count` times, on an image of 4 x 4."""
    rng, weights, nodes, last = np.random.default_rng(0), {}, [], "x"
    for i in range(count):
        shape = (channels, channels, 3, 3)
        weights[f"w{i}"] = rng.standard_normal(shape) * (2 / (9 * channels)) ** 0.5
        conv = helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1])
        last = "y" if i == count - 1 else f"h{i}"
        nodes += [conv, helper.make_node("Relu", [f"c{i}"], [last])]
    image = [1, channels, 4, 4]
    return _model(nodes, weights, {"x": image}, image)


def _model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    inputs: dict[str, list[int]],
    result: list[int],
) -> onnx.ModelProto:
    def typed(name: str, shape: list[int]) -> onnx.ValueInfoProto:
        kind = TensorProto.INT64 if name == "i" else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, shape)

    found = [typed(name, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "large", found, [typed("y", result)])
    for name, array in weights.items():
        graph.initializer.add(
            name=name,
            data_type=TensorProto.FLOAT,
            dims=array.shape,
            raw_data=array.astype(np.float32).tobytes(),
        )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def after(made: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model without weights that reads the result of another one."""
    shape = [d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim]
    given, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("c", "z")
    )
    graph = helper.make_graph([helper.make_node("Neg", ["c"], ["z"])], "other", [given], [result])
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


MODELS = {"layers": layers, "embedding": embedding, "convnet": convnet}


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


def _below(pid: int) -> list[int]:
    """Returns a process and all processes that it started."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def _shares(pid: int) -> int:
    """Returns the resident KiB of a process; a page counts in equal parts for all who map it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def peak_of_all(command: list[str]) -> tuple[int, float]:
    """Runs a command. Returns the peak of all its processes together in KiB, and its seconds."""
    started, most = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, sum(map(_shares, _below(process.pid))))
            time.sleep(0.03)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return most, time.perf_counter() - started


def gradient(path: Path, folder: Path) -> Path:
    """Writes the gradient by all weights of a model, which lie in another file."""
    made = folder / "gradient.onnx"
    folder.mkdir()
    words = ["grad", str(path), "--wrt", "params", "--target", "y", "--no-verify", "-o", str(made)]
    subprocess.run([sys.executable, "-m", "onnxgrad", *words, "-q"], check=True)
    onnx.save(onnx.load(made), made, save_as_external_data=True, location="gradient.data")
    return made


def checked(rows: list[str]) -> None:
    """Print the peaks of all processes of commands that check derivatives."""
    print("\nAll processes of a command:\n")
    print("| model | weights, MB | command | peak, MB | peak / weights | seconds |")
    print("|---|---|---|---|---|---|")
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            path, made = Path(folder, "model.onnx"), make()
            size = sum(len(t.raw_data) for t in made.graph.initializer)
            onnx.save(made, path)
            other = Path(folder, "other.onnx")
            onnx.save(after(made), other)
            del made
            for row in [
                row for row in CHECKED if not rows or {row, name, f"{name}:{row}"} & {*rows}
            ]:
                words = CHECKED[row].replace("MODEL", str(path)).replace("OTHER", str(other))
                words = words.replace("OUT", folder).split()
                command = [sys.executable, "-m", "onnxgrad", *words, "-q"]
                if not words:
                    run = path if row != _GRADIENT else gradient(path, Path(folder, "grad"))
                    command = [sys.executable, "-c", _RUN, str(run)]
                most, seconds = peak_of_all(command)
                share = most * 1024 / size
                print(
                    f"| {name} | {size / 1e6:.0f} | {row} | {most * 1024 / 1e6:.0f} | "
                    f"{share:.2f} | {seconds:.0f} |",
                    flush=True,
                )


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
    parser.add_argument("--table", choices=("plain", "proved", "checked"))
    args = parser.parse_args()
    print(conditions())
    if args.table in (None, "plain"):
        table(COMMANDS, args.rows, args.gigabytes, "--no-verify")
    if args.table in (None, "proved"):
        table(PROOFS, args.rows, args.proved)
    if args.table in (None, "checked"):
        checked(args.rows)


if __name__ == "__main__":
    main()
