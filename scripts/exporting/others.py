"""What the exporters other than PyTorch's have in common: a model, what to feed it, and what its
framework computes.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from sessions import session

IR_VERSION = 10  # the newest that the lowest onnxruntime of our own reads


@dataclass(frozen=True)
class Exported:
    """A model with inputs and the outputs that its framework gives for them, in the file's order;
    None where the framework gives nothing comparable.
    """

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    expected: tuple[Any, ...]
    tolerance: float = 1e-4


Models = dict[str, Callable[[], Exported]]


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """All outputs, from onnxruntime as deployed."""
    return list(session(model).run(None, dict(feeds)))


def plain(value: Any) -> np.ndarray:
    """A tensor, or a sequence of maps as the matrix of its values."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.asarray([list(row.values()) for row in value])
    return np.asarray(value)


def worst(found: Any, wanted: Any) -> float:
    """Largest difference of one output, over its largest magnitude; the share of elements where
    they are exact.
    """
    a, b = plain(found), np.asarray(wanted)
    if a.size != b.size:
        raise ValueError(f"onnxruntime gives shape {a.shape}, the framework {b.shape}")
    b = b.reshape(a.shape)
    if a.dtype.kind != "f":
        return float((a.astype(str) != b.astype(str)).mean())
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def write(name: str, made: Exported, folder: Path) -> str:
    """Writes FOLDER/NAME.onnx once it passes the checker, runs, and agrees with its framework;
    returns a line about it.
    """
    model = made.model
    onnx.checker.check_model(model)
    results = run(model, made.feeds)
    gaps = [worst(f, w) for f, w in zip(results, made.expected) if w is not None]
    if not all(gap <= made.tolerance for gap in gaps):
        raise ValueError(f"{name}: differs from its framework by {gaps}")
    folder.mkdir(parents=True, exist_ok=True)
    data = model.SerializeToString(deterministic=True)
    (folder / f"{name}.onnx").write_bytes(data)
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
    largest = f"{max(gaps):.1e}" if gaps else "not compared"
    return f"{name:24} {len(data):8,} bytes {len(model.graph.node):4} nodes  {opsets}  {largest}"


def write_versions(folder: Path, packages: tuple[str, ...], models: Models) -> None:
    """FOLDER/made_by.json: which versions made the files, and what each file is."""
    versions = {p: importlib.metadata.version(p) for p in packages}
    what = {n: " ".join((build.__doc__ or "").split()) for n, build in models.items()}
    text = json.dumps({"versions": versions, "models": what}, indent=1, ensure_ascii=False)
    (folder / "made_by.json").write_text(text + "\n", encoding="utf-8")
