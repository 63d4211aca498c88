"""What Python's Trainer says of the same steps, and where the examples in other languages live."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.train import Trainer, save_step, training_step
from onnxgrad.train.export import KEY
from onnxgrad.train.step_folder import DEPLOYED
from scripts.examples.make_digits import batch
from tests.helpers import ROOT

EXAMPLES = ROOT / "scripts" / "examples"
CLIENT = ROOT / "scripts" / "clients" / "js"
STEPS = 20


def need(package: str, program: str | None, name: str) -> str:
    """The program's path; skips, naming what is missing, without it or the package."""
    if program is None:
        pytest.skip(f"there is no {name} on the path")
    if not (EXAMPLES / "node_modules" / package).is_dir():
        pytest.skip(f"{package} is not installed: cd scripts/examples && npm install")
    return program


def trained(folder: Path, steps: int = STEPS) -> tuple[Trainer, list[float]]:
    """Python's Trainer after these steps, by the portable graph, and the loss of each."""
    trainer = Trainer(folder, threads=1, engine="graph")
    return trainer, [trainer.step(batch(k)) for k in range(steps)]


def assert_same_losses(found: list[float], folder: Path) -> None:
    _, expected = trained(folder)
    assert expected[-1] < 0.9 * expected[0]
    assert len(found) == STEPS
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def assert_same_files(state: Path, model: Path, folder: Path) -> None:
    """Python goes on from that state, and exports from it the weights that stand in that model."""
    trainer, _ = trained(folder)
    again = Trainer(folder, threads=1)
    again.restore(state)
    assert again.progress.steps == STEPS
    for name, value in again.parameters.items():
        np.testing.assert_allclose(value, trainer.parameters[name], rtol=0, atol=1e-5)
    # field for field what Python exports
    saved, expected = onnx.load(model), again.export(onnx.load(folder / "digits.onnx"))
    assert said(saved) == said(expected)
    assert saved == expected


def described(folder: Path) -> None:
    """Put into the original what a training must not lose, and what an earlier one said."""
    model = onnx.load(folder / "digits.onnx")
    model.doc_string, model.producer_name = "digits of 8 by 8, \u00e4", "by hand"
    model.graph.doc_string = "two layers"
    model.graph.initializer[0].doc_string = "of the first"
    model.opset_import.add(domain="nobody.reads", version=3)
    for key, value in {"author": "x" * 200, KEY: "{}", "license": "free", "empty": ""}.items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, folder / "digits.onnx")


def said(model: onnx.ModelProto) -> object:
    """What a model says of its training, which is taken away."""
    (entry,) = [e for e in model.metadata_props if e.key == KEY]
    model.metadata_props.remove(entry)
    return json.loads(entry.value)


def odd_step(folder: Path, ir_version: int = 8) -> Path:
    """A step of a model with functions and metadata, a scalar and names that JSON must quote; its folder also has
    what Python deploys, with the first values.
    """
    model = onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["" : 15, "own" : 1]> g (float[N,40] x) => (float[N,3] logits) '
        "{ h = MatMul (x, w) logits = own.scaled (h, s, f) } "
        '<domain: "own", opset_import: ["" : 15]> scaled (x, a, b) => (y) { c = Mul (x, a) y = Mul (c, b) }'
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (40, 3), "s": (), "f": (3,)}.items():
        value = np.asarray(rng.uniform(1, 2, shape), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    names = {"w": 'größe "a\\b"/\u2028', "s": "s\t"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for key in (KEY, "other"):
        model.metadata_props.add(key=key, value="before")
    step = training_step(model, "cross_entropy", wrt=list(names.values()))
    save_step(step, folder)
    Trainer(folder, threads=1).deploy(folder / DEPLOYED)
    assert len(onnx.load(folder / DEPLOYED).functions) == 1
    return folder
