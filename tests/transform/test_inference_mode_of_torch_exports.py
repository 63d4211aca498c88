"""The written file computes what `predict` does, for networks that PyTorch exported in training mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.train import Trainer, read_step, save_step, training_step
from onnxgrad.transform.inference_mode import in_training_mode
from onnxgrad.verify.running.session import run

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ROWS = 12


class Network(nn.Module):  # type: ignore[misc,name-defined]
    """Layers by name, and what they compute."""

    def __init__(self, forward: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.of = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Any) -> Any:
        return self.of(self, x)


def recurrent(kind: Any, size: int = 6, **options: Any) -> Any:
    return Network(
        lambda n, x: n.head(F.dropout(n.norm(n.cell(x)[0][:, -1]), 0.3, n.training)),
        cell=kind(4, 6, batch_first=True, **options), norm=nn.BatchNorm1d(size), head=nn.Linear(size, 3),
    )  # fmt: skip


def residual() -> Any:
    def forward(n: Any, x: Any) -> Any:
        x = n.a(n.stem(x)).relu()
        return n.head((x + n.b(n.conv(x))).relu().mean((2, 3)))

    stem, conv = (nn.Conv2d(k, 8, 3, padding=1, bias=False) for k in (3, 8))
    norms = {"a": nn.BatchNorm2d(8), "b": nn.BatchNorm2d(8)}
    return Network(forward, stem=stem, conv=conv, **norms, head=nn.Linear(8, 3))


def attention() -> Any:
    def forward(n: Any, x: Any) -> Any:
        q, k, v = n.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if n.training else 0.0)
        return n.head(F.dropout(y.transpose(1, 2).flatten(2).mean(1), 0.3, n.training))

    return Network(forward, qkv=nn.Linear(4, 24), head=nn.Linear(8, 3))


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True)
    return Network(
        lambda n, x: n.head(n.body(n.table(x)).mean(1)),
        table=nn.Embedding(20, 8), head=nn.Linear(8, 3),
        body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    )  # fmt: skip


def images(*layers: Any, size: int = 288) -> Any:
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(size, 3))


# the network by the kind of its input: rows of numbers, images, sequences, words
NETWORKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "mlp": ("rows", lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))),
    "conv": ("images", lambda: images(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), size=54)),
    "residual": ("images", residual),
    "mobile": ("images", lambda: images(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), size=8)),
    "transposed": ("images", lambda: images(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4), nn.PReLU(4), size=576)),
    "group": ("images", lambda: images(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.BatchNorm2d(8))),
    "instance": ("images", lambda: images(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8, affine=False))),
    "volume": ("images", lambda: images(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), size=768)),
    "layer": ("rows", lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))),
    "sequence": ("sequences", lambda: images(nn.Conv1d(5, 8, 3, padding=1), nn.BatchNorm1d(8, eps=1e-3, momentum=0.3), nn.ELU(), size=32)),
    "shared": ("rows", lambda: Network(lambda n, x: n.head(n.norm(n.b(n.norm(n.a(x)).relu()))), a=nn.Linear(4, 8), b=nn.Linear(8, 8), norm=nn.BatchNorm1d(8), head=nn.Linear(8, 3))),
    "words": ("words", lambda: Network(lambda n, x: n.head(F.dropout(n.norm(n.table(x).mean(1)), 0.3, n.training)), table=nn.Embedding(20, 8), norm=nn.BatchNorm1d(8), head=nn.Linear(8, 3))),
    "lstm": ("sequences", lambda: recurrent(nn.LSTM)),
    "gru": ("sequences", lambda: recurrent(nn.GRU, 12, bidirectional=True)),
    "attention": ("sequences", attention),
    "encoder": ("words", encoder),
}  # fmt: skip


def arrays(kind: str) -> Any:
    rng = np.random.default_rng(3)
    if kind == "words":
        return rng.integers(0, 20, (ROWS, 6))
    shape = {"rows": (4,), "images": (3, 8, 8), "sequences": (5, 4)}[kind]
    return rng.normal(1, 2, (ROWS, *shape)).astype(np.float32)


def exported(net: Any, x: Any, path: Path, dynamo: bool) -> None:
    """As `onnxgrad help training` says, after some batches, so that the statistics are no zeros."""
    net.train()
    with torch.no_grad():
        for _ in range(3):
            net(x)
    names = {"input_names": ["x"], "output_names": ["logits"], "verbose": False}
    if dynamo:
        sizes = ({0: torch.export.Dim("N")},)
        how = {"dynamo": True, "optimize": False, "dynamic_shapes": sizes}
    else:
        training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
        how = {"dynamo": False, "dynamic_axes": {"x": {0: "N"}}, **training}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(path), **how, **names)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "script"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_written_file_equals_predict(name: str, dynamo: bool, tmp_path: Path) -> None:
    """By `fit -o`, by the trainer and from the folder of a step; all rows together, and each alone."""
    torch.manual_seed(0)
    kind, make = NETWORKS[name]
    x, model, folder = arrays(kind), tmp_path / "m.onnx", tmp_path / "step"
    exported(make(), torch.tensor(x[:4]), model, dynamo)
    switched = in_training_mode(onnx.load(model))
    assert dynamo or switched, "the export is in inference mode"
    data = {"x": x, "labels": np.random.default_rng(1).integers(0, 3, ROWS)}
    how: dict[str, Any] = {"batch_norm": "train", "dropout": "train"}
    save_step(training_step(model, "cross_entropy", "adam{lr=0.01}", **how), folder)
    trainer = Trainer(read_step(folder), threads=1, seed=0)
    trainer.fit(data, epochs=2, batch_size=4)
    trainer.export(model, tmp_path / "o.onnx")
    expected = trainer.predict({"x": x})["logits"]
    # one thread, as above: a bias before a BatchNormalization has the rounding as its gradient
    run_of = {"epochs": 2, "batch_size": 4, "seed": 0, "threads": 1}
    fitted = onnxgrad.fit(model, data, "cross_entropy", "adam{lr=0.01}", **run_of, **how)
    by_folder = run(onnx.load(folder / "predict.onnx"), {"x": x, **trainer.weights})["logits"]
    near = 1e-6 * np.abs(expected).max()
    for made in (onnx.load(tmp_path / "o.onnx"), fitted):
        assert not in_training_mode(made)
        together = run(made, {"x": x})["logits"]
        alone = np.concatenate([np.asarray(run(made, {"x": row[None]})["logits"]) for row in x])
        for found in (together, alone, by_folder):
            np.testing.assert_allclose(found, expected, rtol=0, atol=near)
