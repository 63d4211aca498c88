"""What a model that is larger than memory costs: weights that no pass needs stay on disk and are streamed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers import ROOT

ONNXGRAD = [sys.executable, "-m", "onnxgrad"]
LAYERS, SIDE = 12, 8192  # 12 weights of 256 MiB


def giant(folder: Path, layers: int = LAYERS) -> Path:
    """A chain of MatMul and Relu whose weights lie in one sparse file of 3 GiB."""
    size = SIDE * SIDE * 4
    with open(folder / "weights.bin", "wb") as file:
        file.truncate(layers * size)
        for i in range(layers):  # a mark in each tensor, to find it again
            file.seek(i * size)
            file.write(bytes([i + 1] * 4) + b"\0\0\x80?")  # and 1.0, which float16 holds
    nodes, tensors, last = [], [], "x"
    for i in range(layers):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights.bin"),
            ("offset", str(i * size)),
            ("length", str(size)),
        ):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
        out = "y" if i == layers - 1 else f"r{i}"
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]),
            helper.make_node("Identity", [f"m{i}"], [f"i{i}"]),  # something to do
            helper.make_node("Relu", [f"i{i}"], [out]),
        ]
        last = out
    shape = ["N", SIDE]
    graph = helper.make_graph(
        nodes, "giant", [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info("y", 1, shape)], tensors
    )  # fmt: skip
    path = folder / "giant.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
        ).SerializeToString()
    )
    return path


# a process starts with its parent's peak on its account: the parent here is a small one, not pytest
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def peak_of(command: list[str]) -> int:
    """The largest memory that a command which succeeds holds, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
def test_a_model_of_3_gb_is_optimised_in_a_tenth_of_its_size(tmp_path: Path) -> None:
    model, out = giant(tmp_path), tmp_path / "out.onnx"
    command = [
        sys.executable,
        "-m",
        "onnxgrad",
        "optimize",
        str(model),
        "--no-verify",
        "-q",
        "-o",
        str(out),
    ]
    peak = peak_of(command)
    size = (tmp_path / "weights.bin").stat().st_size
    assert size >= 3 * 10**9
    print(f"peak {peak / 1e6:.0f} MB of {size / 1e6:.0f} MB: {100 * peak / size:.1f} %")
    assert peak < size / 10
    written = onnx.load(out, load_external_data=False)
    assert [n.op_type for n in written.graph.node] == ["MatMul", "Relu"] * LAYERS
    for i, tensor in enumerate(written.graph.initializer):
        place = {e.key: e.value for e in tensor.external_data}
        with open(tmp_path / place["location"], "rb") as file:
            file.seek(int(place["offset"]))
            assert file.read(4) == bytes([i + 1] * 4)
        assert int(place["length"]) == SIDE * SIDE * 4
    assert sum(p.stat().st_size for p in tmp_path.glob("out.onnx.*.data")) >= size


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("command", ["float16", "grad --wrt x --target y"])
def test_weights_of_half_a_gb_are_never_in_memory(
    tmp_path: Path, command: str, inside: bool
) -> None:
    """In an external file and in the model's own; below 2 GB, float16 writes one file."""
    model, out = giant(tmp_path, 2), tmp_path / "out.onnx"
    size = (tmp_path / "weights.bin").stat().st_size
    if inside:
        proto = onnx.load(model)
        for tensor in proto.graph.initializer:
            tensor.ClearField("data_location")
        model.write_bytes(proto.SerializeToString())
    name, *more = command.split()
    peak = peak_of([*ONNXGRAD, name, str(model), *more, "--no-verify", "-q", "-o", str(out)])
    print(f"peak {peak / 1e6:.0f} MB of {size / 1e6:.0f} MB")
    assert peak < size / 3
    for tensor in onnx.load(out).graph.initializer[:2]:
        half = name == "float16"
        assert len(tensor.raw_data) == size / (4 if half else 2)
        assert tensor.raw_data[2:4] == b"\0<" if half else tensor.raw_data[4:8] == b"\0\0\x80?"
    assert len([*tmp_path.glob("out.onnx.*.data")]) == (name == "grad" and not inside)


@pytest.mark.slow
def test_new_weights_of_half_a_gb_are_scaled_block_by_block(tmp_path: Path) -> None:
    """The optimised model has w0 * s and w1 * s; two facts are about the same products."""
    model, small, out = giant(tmp_path, 2), tmp_path / "small.onnx", tmp_path / "out.onnx"
    size, proto = (tmp_path / "weights.bin").stat().st_size, onnx.load(model, load_external_data=False)  # fmt: skip
    for node in proto.graph.node:
        if node.op_type == "Identity":
            node.op_type = "Mul"
            node.input.append("s")
    scale = np.linspace(0.5, 2, SIDE, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(scale, "s"))
    model.write_bytes(proto.SerializeToString())
    words = ["optimize", str(model), "--rebasable", "--no-verify", "-q", "-o", str(small)]
    subprocess.run([*ONNXGRAD, *words], check=True)
    words = ["rebase", str(small), "--weights", str(model), "--no-verify", "-q", "-o", str(out)]
    peak = peak_of([*ONNXGRAD, *words])
    print(f"peak {peak / 1e6:.0f} MB of {size / 1e6:.0f} MB")
    assert peak < size / 3
    written = [onnx.load(path) for path in (small, out)]
    assert [n.op_type for n in written[1].graph.node] == ["MatMul", "Relu"] * 2
    for tensors in zip(*(m.graph.initializer for m in written), strict=True):
        assert len({t.raw_data for t in tensors}) == 1


@pytest.mark.slow
def test_the_gradient_of_a_model_of_2_gb_is_written_in_a_tenth_of_its_size(tmp_path: Path) -> None:
    """At an opset that has to be raised first; the check by differences says that it is too large for that."""
    model, out = giant(tmp_path), tmp_path / "out.onnx"
    proto = onnx.load(model, load_external_data=False)
    proto.opset_import[0].version = 13
    proto.graph.node.append(helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", 1, []))
    model.write_bytes(proto.SerializeToString())
    command = [
        sys.executable,
        "-m",
        "onnxgrad",
        "grad",
        str(model),
        "--wrt",
        "w0",
        "--target",
        "loss",
        "-q",
        "-o",
        str(out),
    ]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (
        refused.returncode == 2
        and "--no-verify` makes the gradient" in refused.stderr
        and not out.exists()
    )
    peak = peak_of([*command, "--no-verify"])
    print(f"peak {peak / 1e6:.0f} MB")
    assert peak < (tmp_path / "weights.bin").stat().st_size / 10
    written = onnx.load(out, load_external_data=False)
    assert [o.name for o in written.graph.output] == ["loss", "w0_grad"] and written.opset_import[
        0
    ].version == 18
    for path in [*tmp_path.glob("out.onnx.*.data"), tmp_path / "weights.bin"]:
        path.unlink()  # pytest keeps its folders


_ROOM = 180 * 10**6  # three processes, and the onnxruntime, numpy and onnx that they import


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["layers", "embedding"])
@pytest.mark.parametrize(
    ("command", "most"),
    [
        # one run of the gradient in onnxruntime holds 3.2 to 3.4 times the weights
        ("check-grad MODEL --wrt params --target y", 3.6),
        ("train-step MODEL --loss mse --wrt params -o OUT/step", 3.6),
        ("verify MODEL MODEL", 1.2),
        ("join MODEL OTHER --map y=c --prefix B_ -o OUT/o.onnx", 1.2),
    ],
)
def test_all_processes_hold_weights_about_as_often_as_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, most: float, kind: str
) -> None:
    """Of weights in the model's file, of which a session of the file itself holds two copies."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    bench = importlib.import_module("bench_large_models")
    model, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    made = bench.layers(11) if kind == "layers" else bench.embedding(60_000)
    onnx.save(made, model)
    onnx.save(bench.after(made), other)
    del made
    size = model.stat().st_size
    words = command.replace("MODEL", str(model)).replace("OTHER", str(other))
    words = words.replace("OUT", str(tmp_path))
    peak = bench.peak_of_all([*ONNXGRAD, *words.split(), "-q"])[0] * 1024
    print(f"peak {peak / 1e6:.0f} MB of {size / 1e6:.0f} MB")
    assert size > 180 * 10**6 and peak < most * size + _ROOM
