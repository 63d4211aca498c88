"""Networks that are exported at two fixed sizes, through both of PyTorch's exporters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

OPSET = 17
_TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 99,
}  # fmt: skip
_IDS, _MASKED = {"n": ["x.1"]}, {"n": ["x.1", "mask.1"]}
_PICTURE = {"h": ["x.2"], "w": ["x.3"]}


@dataclass(frozen=True)
class Sized:
    """How to build it, its inputs for a size, what to open, and both sizes."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    open: Mapping[str, list[str]]
    sizes: tuple[int, int]


def _block(given: int, made: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(given, made, 3, stride, 1), nn.BatchNorm2d(made), nn.ReLU())


class Segmentation(nn.Module):
    """A map of classes, resized to the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_block(3, 8, 2), _block(8, 16, 2), nn.Conv2d(16, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.body(x), size=x.shape[-2:], mode="bilinear")


class UNet(nn.Module):
    """Skips connections, met by a factor or by a size."""

    def __init__(self, by_size: bool) -> None:
        super().__init__()
        self.by_size = by_size
        self.a, self.b, self.c = _block(3, 8), _block(8, 16), _block(16, 32)
        self.up, self.d, self.e = nn.ConvTranspose2d(32, 16, 2, 2), _block(32, 16), _block(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        u = self.d(torch.cat([self.up(self.c(F.max_pool2d(b, 2))), b], 1))
        wanted: dict[str, Any] = {"size": a.shape[-2:]} if self.by_size else {"scale_factor": 2.0}
        return self.e(torch.cat([F.interpolate(u, **wanted), a], 1))


class Classes(nn.Module):
    """A head behind pooling over the picture, or behind all its pixels."""

    def __init__(self, pixels: int = 0) -> None:
        super().__init__()
        self.pixels = pixels
        self.body, self.head = _block(3, 8, 4), nn.Linear(8 * max(pixels, 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return self.head(torch.flatten(y if self.pixels else F.adaptive_avg_pool2d(y, 1), 1))


class NonLocal(nn.Module):
    """Attention of every pixel to every other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.q, self.k = _block(3, 8, 2), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        b, c, h, w = y.shape
        scores = self.q(y).view(b, 4, h * w).transpose(1, 2) @ self.k(y).view(b, 4, h * w)
        mixed = y.view(b, c, h * w) @ torch.softmax(scores / 2, -1).transpose(1, 2)
        return y + mixed.view(b, c, h, w)


class ConvNeXt(nn.Module):
    """A depthwise convolution and a normalisation of channels in the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, 1, 3, groups=16)
        self.norm, self.a, self.b = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.b(F.gelu(self.a(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
        return (x + y.permute(0, 3, 1, 2)).mean((-2, -1))


class Sound(nn.Module):
    """Strided and dilated convolutions, then a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 8, 10, 5), nn.Conv1d(8, 8, 3, 1, 2, dilation=2)
        self.gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.gru(self.b(self.a(x).relu()).relu().transpose(1, 2))[0]
        return made


class Demucs(nn.Module):
    """An encoder and decoder of sound around an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 8, 8, 4, 2), nn.Conv1d(8, 16, 8, 4, 2)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.c, self.d = nn.ConvTranspose1d(16, 8, 8, 4, 2), nn.ConvTranspose1d(8, 1, 8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu()
        b = self.b(a).relu()
        c = self.lstm(b.transpose(1, 2))[0].transpose(1, 2) + b
        made: Tensor = self.d(self.c(c).relu() + a)
        return made


class Words(nn.Module):
    """Learned positions, and a causal mask cut from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, ids: Tensor) -> Tensor:
        b, n = ids.shape
        x = self.words(ids) + self.table(torch.arange(n)[None])
        q, k, v = (p.view(b, n, 4, 4).transpose(1, 2) for p in self.qkv(self.norm(x)).split(16, 2))
        hidden = self.mask[:, :, :n, :n] == 0
        a = (q @ k.transpose(-1, -2) / 2).masked_fill(hidden, float("-inf")).softmax(-1)
        made: Tensor = x + self.out((a @ v).transpose(1, 2).reshape(b, n, 16))
        return made


class Windows(nn.Module):
    """Windows of 4 x 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        y = self.f(y).softmax(1).view(b, h // 4, w // 4, 4, 4, c)
        return y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


class Output(nn.Module):
    """One result of a model of the transformers library."""

    def __init__(self, model: nn.Module, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.name, self.options = model, name, options

    def forward(self, *x: Tensor) -> Tensor:
        made: Tensor = getattr(self.model(*x, **self.options), self.name)
        return made


def _library(
    name: str, head: str = "Model", output: str = "last_hidden_state", **config: Any
) -> Callable[[], nn.Module]:
    options = {"use_cache": False} if output == "logits" and "LM" in head else {}
    settings = getattr(hf, f"{name}Config")
    return lambda: Output(getattr(hf, name + head)(settings(**config)), output, options)


def _ids(n: int) -> tuple[Tensor, ...]:
    return (torch.randint(2, 50, (1, n)),)


def _masked(n: int) -> tuple[Tensor, ...]:
    return (*_ids(n), torch.ones(1, n, dtype=torch.int64))


def _wide(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, n, n + 16),)


def _sound(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, 1, n),)


_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
_VIT = {**_TEXT, "image_size": 32, "patch_size": 8}
_SEG = {
    "hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4, "num_attention_heads": [1, 2, 2, 2],
    "decoder_hidden_size": 16, "num_labels": 3,
}  # fmt: skip
_WAV = {
    **_TEXT, "vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
_LLAMA = {**_TEXT, "num_key_value_heads": 2}
_EAGER, _SDPA = ({"attn_implementation": a} for a in ("eager", "sdpa"))
# of gptoss; PyTorch's exporters lack operators of other implementations
_EXPERTS = {
    "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
    "experts_implementation": "batched_mm",
}  # fmt: skip
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
_SPECIAL = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "cls", "eos", "sep"))}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_SEGFORMER = _library("Segformer", "ForSemanticSegmentation", "logits", **_SEG)


def _sliding(window: int) -> dict[str, Sized]:
    """Returns networks with layers that see `window` positions, back or to both sides."""
    built = {
        "gptoss": _library(
            "GptOss", "ForCausalLM", "logits", **_LLAMA, **_EXPERTS, **_EAGER, sliding_window=window
        ),
        "gemma3": _library(
            "Gemma3Text", **_LLAMA, **_ALTERNATING, **_EAGER, head_dim=8, sliding_window=window
        ),
        "starcoder2": _library("Starcoder2", **_LLAMA, **_EAGER, sliding_window=window),
        "modernbert": _library(
            "ModernBert", **{**_TEXT, "num_hidden_layers": 3}, **_SPECIAL, **_EAGER,
            local_attention=2 * window,
        ),
    }  # fmt: skip
    return {name: Sized(build, _ids, _IDS, (13, 21)) for name, build in built.items()}


NETWORKS: dict[str, Sized] = {
    "segmentation": Sized(Segmentation, _wide, _PICTURE, (32, 64)),
    "unet_scale": Sized(lambda: UNet(False), _wide, _PICTURE, (32, 64)),
    "unet_size": Sized(lambda: UNet(True), _wide, _PICTURE, (32, 64)),
    "classes": Sized(Classes, _wide, _PICTURE, (32, 64)),
    "all_pixels": Sized(lambda: Classes(8 * 12), _wide, _PICTURE, (32, 32)),
    "non_local": Sized(NonLocal, _wide, _PICTURE, (32, 64)),
    "convnext": Sized(ConvNeXt, _wide, _PICTURE, (32, 64)),
    "sound": Sized(Sound, _sound, {"n": ["x.2"]}, (200, 335)),
    "demucs": Sized(Demucs, _sound, {"n": ["x.2"]}, (256, 512)),
    "words": Sized(Words, _ids, _IDS, (13, 21)),
    "windows": Sized(
        Windows, lambda n: (torch.randn(1, n, n, 4),), {"n": ["x.1", "x.2"]}, (16, 32)
    ),
    "bert_eager": Sized(_library("Bert", **_TEXT, **_EAGER), _masked, _MASKED, (13, 21)),
    "bert_sdpa": Sized(_library("Bert", **_TEXT, **_SDPA), _masked, _MASKED, (13, 21)),
    "bert_ids": Sized(_library("Bert", **_TEXT), _ids, _IDS, (13, 21)),
    # as long as a head is wide
    "bert_short": Sized(_library("Bert", **_TEXT), _ids, _IDS, (8, 16)),
    "roberta": Sized(
        _library("Roberta", **_TEXT, max_position_embeddings=64), _ids, _IDS, (13, 21)
    ),
    "gpt2": Sized(_library("GPT2", "LMHeadModel", "logits", **_GPT2), _ids, _IDS, (13, 21)),
    "llama": Sized(_library("Llama", "ForCausalLM", "logits", **_LLAMA), _ids, _IDS, (13, 21)),
    **{f"{name}_{window}": net for window in (4, 16) for name, net in _sliding(window).items()},
    "t5": Sized(
        _library("T5", "EncoderModel", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        _ids, _IDS, (13, 21),
    ),
    "wav2vec2": Sized(
        _library("Wav2Vec2", **_WAV), lambda n: (torch.randn(1, n),), {"n": ["x.1"]}, (800, 1200)
    ),
    "vit": Sized(_library("ViT", **_VIT), lambda n: (torch.randn(1, 3, n, n),), _PICTURE, (32, 32)),
    "segformer": Sized(_SEGFORMER, _wide, _PICTURE, (64, 96)),
    "segformer_square": Sized(
        _SEGFORMER, lambda n: (torch.randn(1, 3, n, n),), _PICTURE, (64, 96)
    ),
    "deberta": Sized(_library("DebertaV2", **_TEXT, **_RELATIVE), _masked, _MASKED, (13, 21)),
}  # fmt: skip


def export_sized(names: Iterable[str], folder: Path) -> None:
    """Writes NAME.SIZE.ts.onnx and NAME.SIZE.dyn.onnx for each size, and what to open."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {name: (dict(net.open), net.sizes) for name, net in NETWORKS.items()}
    (folder / "sized.json").write_text(json.dumps(known))
    for name in names or NETWORKS:
        net = NETWORKS[name]
        torch.manual_seed(1)
        module = net.build().eval()
        for p in (p for p in module.parameters() if p.ndim < 2):
            p.data += 0.1 * torch.randn_like(p)
        for size in dict.fromkeys(net.sizes):
            given = net.inputs(size)
            for exporter in ("ts", "dyn"):
                options: dict[str, Any] = {"dynamo": False, "opset_version": OPSET}
                if exporter == "dyn":
                    options = {"dynamo": True, "external_data": False, "verbose": False}
                path = folder / f"{name}.{size}.{exporter}.onnx"
                try:
                    torch.onnx.export(
                        module, given, path, input_names=["x", "mask"][: len(given)], **options
                    )
                except Exception as error:  # noqa: BLE001  # an exporter that lacks a network
                    print(f"{path.name}: {type(error).__name__}", flush=True)
