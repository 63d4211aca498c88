"""The digits and their networks; and what holds for the JavaScript whether or not it can run here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from onnxgrad.train import accuracy
from onnxgrad.train.step_folder import read_step
from scripts.examples.make_digits import NODES, OPTIMIZERS, TRAINED_ON, digits, write
from tests.examples.common import EXAMPLES, trained

SOURCES = [p for folder in (".", "node", "web") for p in sorted((EXAMPLES / folder).glob("*.*"))
           if p.suffix in (".mjs", ".html", ".css")]  # fmt: skip


def test_the_digits() -> None:
    images, labels = digits()
    assert images.shape == (1797, 64) and images.min() == 0 and images.max() == 1
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, :8].tolist() == [0, 0, 5 / 16, 13 / 16, 9 / 16, 1 / 16, 0, 0]


@pytest.mark.parametrize("network", NODES)
def test_a_network_learns(network: str, tmp_path: Path) -> None:
    write(tmp_path, network)
    trainer, losses = trained(tmp_path, 200)
    assert losses[-1] < 0.15 * losses[0]
    images, labels = digits()
    unseen = {"x": images[TRAINED_ON:], "labels": labels[TRAINED_ON:]}
    found = trainer.evaluate(unseen, metrics={"accuracy": accuracy("logits", "labels")})
    assert found["accuracy"] > 0.85


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_step_is_a_folder(optimizer: str, tmp_path: Path) -> None:
    write(tmp_path / "new", "mlp", optimizer)
    assert read_step(tmp_path / "new").manifest.optimizer["name"] in ("sgd", "adamw")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_a_source_is_short_and_names_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 100
    hosts = set(re.findall(r"https?://([\w.]+)", text))
    assert hosts <= {"www.w3.org", "github.com"}  # SVG's namespace, a reference to a format


def test_versions_are_exact() -> None:
    package = json.loads((EXAMPLES / "package.json").read_text(encoding="utf-8"))
    versions = package["dependencies"] | package["devDependencies"]
    assert versions.pop("onnxgrad-step") == "file:../clients/js"  # the package of this repository
    assert all(re.fullmatch(r"[\d.]+", v) for v in versions.values())
