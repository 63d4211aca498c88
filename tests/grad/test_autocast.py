"""Products in narrow dtypes: what is rounded, and what is not; each result once, on the CPU too."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.numpy_helper import from_array

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.grad.autocast import widened
from onnxgrad.ir.load import load
from onnxgrad.train import SGD, Trainer, training_step
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.engines.session import open_session
from onnxgrad.train.step_folder import read_step
from tests.helpers import parse
from tests.train.common import classifier, examples

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
MODEL = parse("g (float[N,4] x) => (float[N,3] y) { h = MatMul (x, w)  y = Add (h, b) }")
W = (np.arange(12).reshape(4, 3) / np.float32(3) - 1).astype(np.float32)
B = np.float32([1 / 3, 1 / 7, 1e-3])
MODEL.graph.initializer.extend([from_array(W, "w"), from_array(B, "b")])
DATA = {
    "x": (np.arange(20).reshape(5, 4) / np.float32(7) - 1).astype(np.float32),
    "target": np.ones((5, 3), np.float32),
}


@pytest.mark.parametrize("engine", ["blocks", "graph"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_rounded_and_nothing_else(dtype: Any, engine: Any) -> None:
    def rounded(a: Any) -> Any:
        return np.asarray(a, np.float32).astype(DTYPES[dtype]).astype(np.float32)

    made = training_step(MODEL, "mse", SGD(lr=1.0), autocast=dtype)
    assert made.manifest.options == {"autocast": dtype}
    lost = ", where adjoints below 6e-8 are 0: scale the loss" if dtype == "float16" else ""
    assert made.notes[-1] == (
        f"autocast: 1 MatMul and their gradients in {dtype}{lost}; weights and all other values in "
        "float32"
    )
    assert {fed.dtype for fed in made.manifest.of_model()} == {"float32"}
    own = Trainer(made, engine=engine, threads=1)
    y = rounded(rounded(DATA["x"]) @ rounded(W)) + B
    assert own.evaluate(DATA)["loss"] == pytest.approx(((DATA["x"] @ W + B - 1) ** 2).mean(), 1e-6)
    loss = own.step(DATA)
    assert loss == pytest.approx(float(((y - 1) ** 2).mean()), rel=1e-6)
    assert loss != pytest.approx(float(((DATA["x"] @ W + B - 1) ** 2).mean()), rel=1e-6)
    of_y = 2 * (y - 1) / np.float32(15)
    of_w = rounded(rounded(DATA["x"]).T @ rounded(of_y))
    np.testing.assert_allclose(W - own.parameters["w"], of_w, rtol=0, atol=2e-7)
    np.testing.assert_allclose(B - own.parameters["b"], of_y.sum(0), rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_rounds_products_and_nothing_else(dtype: Any, tmp_path: Any) -> None:
    def rounded(a: Any) -> Any:
        return np.asarray(a, np.float32).astype(DTYPES[dtype]).astype(np.float32)

    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(MODEL, path)
    made = onnxgrad.gradient(MODEL, ["x", "w", "b"], "y", adjoint="input", autocast=dtype)
    assert main(["grad", str(path), "--wrt", "x,w,b", "-o", str(out), "--autocast", dtype]) == 0
    assert onnx.load(out).graph.node == made.graph.node
    g = (np.arange(15).reshape(5, 3) / np.float32(9) - 1).astype(np.float32)
    names = ["y", "x_grad", "w_grad", "b_grad"]
    found = open_session(load(made), "cpu", 1).run(names, {"x": DATA["x"], "y_grad": g})
    x, w = rounded(DATA["x"]), rounded(W)
    wanted = rounded(x @ w) + B, rounded(rounded(g) @ w.T), rounded(x.T @ rounded(g)), g.sum(0)
    for name, value, expected in zip(names, found, wanted, strict=True):
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_session_rounds_each_result() -> None:
    """onnxruntime itself leaves the float16 between two nodes out, and with it an overflow."""
    text = "g (float[3] x) => (float[3] y) { h = Cast <to = 10> (x)  g = Mul (h, h) y = Cast <to = 1> (g) }"
    program = load(parse(text))
    x = np.float32([300, 1 + 2**-12, 1.0001])
    (found,) = open_session(program, "cpu", 1).run(None, {"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, (x.astype("f2") * x.astype("f2")).astype("f4"))
    plain = load(classifier())
    assert widened(plain) is plain
    inside = """g (bfloat16[3] x, bool f) => (bfloat16[3] y) { y = If (f) <
        then_branch = t () => (bfloat16[3] a) { a = Add (x, x) },
        else_branch = e () => (bfloat16[3] b) { b = Tanh (x) }> }"""
    program = widened(load(parse(inside)))
    kept = {v.dtype for b in program.main.walk() if b.op in ("Add", "Tanh") for v in b.inputs if v}
    assert kept == {TensorProto.FLOAT}


def test_a_loss_that_overflows_is_scaled_down() -> None:
    """Products of float16 overflow on the CPU, too: the update is left out."""
    made = training_step(MODEL, "mse", SGD(lr=1.0), autocast="float16", loss_scale=2.0**24)
    own = Trainer(made, threads=1)
    own.step(DATA)
    np.testing.assert_array_equal(own.parameters["w"], W)
    with pytest.raises(InputError, match="autocast must be one of bfloat16, float16"):
        training_step(MODEL, "mse", autocast="float32")  # type: ignore[arg-type]


def test_a_scaled_loss_is_evaluated_and_its_overflow_named() -> None:
    """The evaluation graph, in float32, has no state of the loss scale among its inputs."""
    made = training_step(MODEL, "mse", SGD(lr=1.0), autocast="float16", loss_scale="dynamic")
    own = Trainer(made, threads=1)
    loss = ((DATA["x"] @ W + B - 1) ** 2).mean()
    assert own.evaluate(DATA)["loss"] == pytest.approx(loss, 1e-6)
    large = {**DATA, "x": DATA["x"] * np.float32(1e5)}
    words = "all values of the model are finite in float32: a product overflows in float16"
    with pytest.raises(Diverged, match=words):
        own.step(large)


@pytest.mark.slow
def test_a_run_goes_on_and_a_step_is_read_back(tmp_path: Any) -> None:
    made = training_step(classifier(), "cross_entropy", autocast="bfloat16")
    whole, part = (Trainer(made, threads=1) for _ in range(2))
    whole.fit(examples(64), epochs=3)
    part.fit(examples(64), epochs=1, folder=tmp_path)
    again = Trainer(made, threads=1)
    with pytest.warns(RunWarning, match="planned length"):
        again.fit(examples(64), epochs=3, folder=tmp_path)
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_in_training_mode_is_checked_in_float32(dtype: str, tmp_path: Path) -> None:
    """onnxruntime has no kernel for the products, and differences of rounded ones show nothing."""
    text = "g (float[N,4] x) => (float[N,3] y) { d = Dropout (x) h = MatMul (d, w) y = Add (h, b) }"
    model = parse(text)
    model.graph.initializer.extend([from_array(W, "w"), from_array(B, "b")])
    onnx.save(model, tmp_path / "m.onnx")
    command = ["train-step", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "step")]
    assert main([*command, "--loss", "mse", "--dropout", "train", "--autocast", dtype]) == 0
    assert read_step(tmp_path / "step").manifest.options == {"dropout": "train", "autocast": dtype}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dense", "convolution", "attention", "unet"])
def test_as_close_to_float64_as_pytorch(name: str, dtype: str) -> None:
    """Thirty steps: twice as far from float64 as PyTorch's autocast at most, and not in float32."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        """A skip connection around an inner network."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            """The sum."""
            return x + self.inner(x)

    class Mean(nn.Module):
        """The mean over the pixels."""

        def forward(self, x: Any) -> Any:
            """The scores."""
            return x.mean(-1)

    torch.manual_seed(0)
    half = nn.Sequential(
        nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 8, 2, 2)
    )
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
    net, shape = {
        "dense": (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3)), (8,)),
        "convolution": (
            nn.Sequential(nn.Conv2d(2, 8, 3), nn.SiLU(), nn.Flatten(), nn.Linear(128, 3)), (2, 6, 6),
        ),
        "unet": (
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), Residual(half),
                nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 3, 1), nn.Flatten(2), Mean(),
            ),
            (3, 8, 8),
        ),
        "attention": (nn.Sequential(layer, nn.Flatten(), nn.Linear(80, 3)), (5, 16)),
    }[name]  # fmt: skip
    x, buffer = torch.randn(64, *shape), io.BytesIO()
    labels = x.flatten(1)[:, :3].argmax(1)
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "N"}}}
    torch.onnx.export(net.train(), (x,), buffer, dynamo=False, **names)  # type: ignore[arg-type]
    scale = {"loss_scale": "dynamic"} if dtype == "float16" else {}
    step: Any = training_step(buffer.getvalue(), "cross_entropy", autocast=dtype, **scale)
    own, losses = Trainer(step, rate=1e-2, threads=1), {"float64": [], "autocast": [], "ours": []}
    nets = {"float64": copy.deepcopy(net).double(), "autocast": net}
    optimizers = {k: torch.optim.AdamW(n.parameters(), lr=1e-2) for k, n in nets.items()}
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    for i in range(30):
        rows = torch.arange(16 * i, 16 * i + 16) % 64
        given = {"x": x[rows].numpy(), "labels": labels[rows].numpy()}
        losses["ours"].append(own.step(given))
        for key, each in nets.items():
            optimizers[key].zero_grad()
            wide = x[rows].double() if key == "float64" else x[rows]
            with torch.autocast("cpu", getattr(torch, dtype), enabled=key == "autocast"):
                loss = nn.functional.cross_entropy(each(wide), labels[rows])
            losses[key].append(loss.item())
            if key == "float64":
                loss.backward()
                optimizers[key].step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizers[key])
                scaler.update()
    exact = np.array(losses["float64"])
    ours, theirs = (np.abs(np.array(losses[k]) - exact).max() for k in ("ours", "autocast"))
    assert 1e-5 < ours < 2 * theirs
