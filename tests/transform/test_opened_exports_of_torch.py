"""PyTorch exports of one size, opened, against the exports of the same networks at other sizes: bit for bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_sizes import open_dimensions
from onnxgrad.verify import feeds_for, open_session

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


class Segmentation(nn.Module):  # type: ignore[misc,name-defined]
    """Its answer has the size of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3, 2, 1)
        )

    def forward(self, x: Any) -> Any:
        return F.interpolate(self.body(x), size=x.shape[-2:], mode="bilinear")


class Skips(nn.Module):  # type: ignore[misc,name-defined]
    """A U-Net that resizes to the sizes of what it kept."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down(x).relu()
        b = F.max_pool2d(F.max_pool2d(a, 2), 2)
        return self.up(torch.cat([F.interpolate(b, size=a.shape[-2:]), a], 1))


class Pixels(nn.Module):  # type: ignore[misc,name-defined]
    """Attention over all pixels, and a pooled answer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.head = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 24, 1), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        n, c, h, w = y.shape
        q, k, v = self.qkv(y).view(n, 3, c, h * w).unbind(1)
        y = y + (v @ (q.transpose(1, 2) @ k).softmax(-1).transpose(1, 2)).view(n, c, h, w)
        return self.head(y.mean((2, 3)))


class Sound(nn.Module):  # type: ignore[misc,name-defined]
    """A 1-D network with strides and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 8, 10, 5), nn.Conv1d(8, 8, 3, 1, 2, dilation=2)
        self.gru, self.head = nn.GRU(8, 6, batch_first=True, bidirectional=True), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        y, _ = self.gru(self.b(self.a(x).relu()).transpose(1, 2))
        return self.head(y)


class Words(nn.Module):  # type: ignore[misc,name-defined]
    """Positions of a table and a causal mask of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, ids: Any) -> Any:
        n, t = ids.shape
        x = self.words(ids) + self.table(torch.arange(t)[None])
        q, k, v = (p.view(n, t, 4, 4).transpose(1, 2) for p in self.qkv(self.norm(x)).split(16, 2))
        a = (q @ k.transpose(-1, -2)).masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        return x + self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(n, t, 16))


def picture(n: int) -> Any:
    return torch.randn(1, 3, n, n + 16)


NETS: dict[str, tuple[Any, Any, dict[str, list[str]], tuple[int, ...]]] = {
    "segmentation": (Segmentation, picture, {"h": ["x.2"], "w": ["x.3"]}, (32, 48, 80)),
    "skips": (Skips, picture, {"h": ["x.2"], "w": ["x.3"]}, (32, 16, 64)),
    "pixels": (Pixels, picture, {"h": ["x.2"], "w": ["x.3"]}, (32, 16, 48)),
    "sound": (Sound, lambda n: torch.randn(1, 1, n), {"n": ["x.2"]}, (200, 120, 335)),
    "words": (Words, lambda n: torch.randint(0, 50, (1, n)), {"n": ["x.1"]}, (16, 9, 33)),
}


def exported(net: Any, example: Any, dynamo: bool) -> onnx.ModelProto:
    if dynamo:
        made = torch.onnx.export(net, (example,), input_names=["x"], dynamo=True, verbose=False)
        return onnx.load_from_string(made.model_proto.SerializeToString())
    data = io.BytesIO()
    torch.onnx.export(net, (example,), data, input_names=["x"], dynamo=False, opset_version=17)
    return onnx.load_from_string(data.getvalue())


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_another_export(name: str, dynamo: bool) -> None:
    make, example, wanted, (size, *others) = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    model = exported(net, example(size), dynamo)
    if (name, dynamo) == ("words", True):  # the exporter folds the table: 16 rows are left of it
        with pytest.raises(InputError, match="holds one value for each position"):
            open_dimensions(load_own(model), wanted)
        return
    follow = [n.name for n in model.graph.node if n.op_type == "Resize" and name == "segmentation"]
    extend = {"*": ""} if name == "words" else None  # positions
    opened = to_proto(
        open_dimensions(load_own(model), wanted, follow, extend=extend).program, weights=True
    )
    for n in (size, *others):
        original = exported(net, example(n), dynamo)
        feeds = feeds_for(original, seed=0)
        expected = open_session(original, optimize=False).run(feeds)
        found = open_session(opened, optimize=False).run(feeds)
        for value in expected:
            np.testing.assert_array_equal(np.asarray(found[value]), np.asarray(expected[value]))


class Rotary(nn.Module):  # type: ignore[misc,name-defined]
    """Attention with rotary positions, and a causal mask or a sliding window, made at each run."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window, self.words, self.qkv = window, nn.Embedding(50, 16), nn.Linear(16, 48)

    def forward(self, ids: Any) -> Any:
        places = torch.arange(ids.shape[1])
        angles = places[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        x = self.words(ids) * 4
        q, k, v = self.qkv(x).split(16, 2)
        q, k = (p * cos + torch.cat([-p[..., 8:], p[..., :8]], -1) * sin for p in (q, k))
        back = places[:, None] - places
        seen = torch.where((back >= 0) & (back < self.window), 0.0, -1e9)
        return x + (q @ k.transpose(-1, -2) + seen).softmax(-1) @ v


@pytest.mark.parametrize(("window", "size"), [(5, 13), (5, 5), (20, 13), (1000, 13)])
def test_windows_are_right_or_named_by_the_user(window: int, size: int) -> None:
    """A window that is no longer than the file shows its edge; a longer one is a causal mask there."""
    torch.manual_seed(0)
    net = Rotary(window).eval()
    model = exported(net, torch.randint(0, 50, (1, size)), True)
    if window < size:
        opened = open_dimensions(load_own(model), {"n": ["x.1"]}, extend={"*": ""})
    else:
        with pytest.raises(InputError, match="a sliding window of more positions") as refused:
            open_dimensions(load_own(model), {"n": ["x.1"]}, extend={"*": ""})
        name = str(refused.value).split("'")[1]
        opened = open_dimensions(
            load_own(model), {"n": ["x.1"]}, extend={"*": "", name: "triangle"}
        )
    for n in (4, size, 2 * window if window < 40 else 40, 300):
        ids = torch.randint(0, 50, (1, n))
        with torch.no_grad():
            expected = net(ids).numpy()
        found = open_session(to_proto(opened.program, weights=True), optimize=False)
        (value,) = found.run({"x": ids.numpy()}).values()
        right = np.abs(np.asarray(value) - expected).max() < 1e-4
        assert right == (window < size or n <= window), n
