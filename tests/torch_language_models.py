"""The networks of tests/language_models.py in PyTorch, on the dequantised weights, with adapters as PEFT adds them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from onnxgrad.train import AdamW, CrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import adapters_of, lora
from tests.language_models import LanguageModel


class Reference:
    """A function of token ids. adapters: A (in, rank) and B (rank, out) by module, which are trained; scale: alpha / rank."""

    def __init__(
        self,
        language: LanguageModel,
        adapters: dict[str, tuple[Any, Any]],
        scale: float,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.of, self.scale = language, scale
        self.matrices = {name: torch.tensor(w).to(dtype) for name, w in language.matrices.items()}
        self.vectors = {name: torch.tensor(v).to(dtype) for name, v in language.vectors.items()}
        self.adapters = {
            name: tuple(torch.tensor(f).to(dtype).requires_grad_() for f in pair)
            for name, pair in adapters.items()
        }

    def parameters(self) -> list[Tensor]:
        return [factor for pair in self.adapters.values() for factor in pair]

    def product(self, x: Tensor, module: str) -> Tensor:
        y = x @ self.matrices[module]
        if module in self.adapters:
            a, b = self.adapters[module]
            y = y + self.scale * ((x @ a) @ b)
        bias = self.vectors.get(module + ".bias")
        return y if bias is None else y + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.vectors[name + ".weight"], self.vectors.get(name + ".bias")
        if bias is not None:
            return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight

    def rotated(self, x: Tensor) -> Tensor:
        """(batch, heads, length, size), whose first numbers are turned by their places."""
        width = self.of.rotated
        speeds = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), speeds)
        # the file stores float32
        cos, sin = (f(angles).float().to(x.dtype) for f in (torch.cos, torch.sin))
        left, right, rest = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)

    def attention(self, x: Tensor, layer: str) -> Tensor:
        of, (batch, length, _) = self.of, x.shape
        if of.architecture == "qwen":
            three = self.product(x, layer + "qkv_proj").split(
                [of.hidden, *[of.kv_heads * of.size] * 2], -1
            )
        else:
            three = tuple(self.product(x, f"{layer}{m}_proj") for m in "qkv")
        q, k, v = (t.reshape(batch, length, -1, of.size).transpose(1, 2) for t in three)
        k, v = (t.repeat_interleave(of.heads // of.kv_heads, 1) for t in (self.rotated(k), v))
        scores = self.rotated(q) @ k.transpose(-1, -2) / math.sqrt(of.size)
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(ahead, -math.inf).softmax(-1) @ v
        return self.product(y.transpose(1, 2).reshape(batch, length, -1), layer + "o_proj")

    def mlp(self, x: Tensor, layer: str) -> Tensor:
        if self.of.architecture == "phi":
            h = functional.gelu(self.product(x, layer + "fc1"), approximate="tanh")
            return self.product(h, layer + "fc2")
        gate = functional.silu(self.product(x, layer + "gate_proj"))
        return self.product(gate * self.product(x, layer + "up_proj"), layer + "down_proj")

    def __call__(self, ids: Tensor) -> Tensor:
        h = self.vectors["model.embed_tokens.weight"][ids]
        for i in range(self.of.layers):
            layer = f"model.layers.{i}."
            h = h + self.attention(self.norm(h, layer + "input_layernorm"), layer + "attn.")
            h = h + self.mlp(self.norm(h, layer + "post_attention_layernorm"), layer + "mlp.")
        return self.product(self.norm(h, "model.norm"), "lm_head")

    def train(self, batches: list[Any], steps: int, rate: float) -> list[float]:
        """Returns the losses of AdamW's steps on the batches in turns."""
        optimizer, losses = torch.optim.AdamW(self.parameters(), lr=rate), []
        for i in range(steps):
            ids, labels = (torch.tensor(a) for a in batches[i % len(batches)])
            loss = functional.cross_entropy(self(ids).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


def both(
    language: LanguageModel,
    targets: str,
    steps: int,
    rate: float,
    *,
    length: int = 8,
    threads: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[float], list[float]]:
    """The losses of AdamW's steps on adapters, of onnxgrad and of PyTorch in `dtype`, from the same factors."""
    small, rng = lora(language.build(), targets, rank=4, alpha=8.0), np.random.default_rng(2)
    found = adapters_of(small)
    # two factors that are not 0, so that all of the gradient counts from the first step
    start = {
        n: v
        if n.endswith("A")
        else (0.4 * rng.standard_normal(v.shape) / v.shape[1] ** 0.5).astype(np.float32)
        for n, v in found.values.items()
    }
    modules = {
        w.rpartition(".")[0]: (start[w + ".lora_A"], start[w + ".lora_B"]) for w in found.weights
    }
    batches = [language.batch(4, length, seed=i) for i in range(5)]
    labels = [rng.integers(0, language.vocabulary, b["input_ids"].shape) for b in batches]
    pairs = [(b["input_ids"], t) for b, t in zip(batches, labels, strict=True)]
    step = training_step(
        small, CrossEntropy("logits", axis=-1), AdamW(weight_decay=0.01), wrt="*.lora_*"
    )
    trainer = Trainer(step, rate, threads=threads)
    trainer.parameters = start
    losses = [trainer.step({**batches[i % 5], "labels": labels[i % 5]}) for i in range(steps)]
    torch.set_num_threads(threads)
    return losses, Reference(language, modules, found.scale, dtype).train(pairs, steps, rate)
