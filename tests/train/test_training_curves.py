"""scripts/training_curves.py: steps with each option follow PyTorch's in float64, and clipping clips."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

NAMES = ["clip by value", "clip by norm", "accumulate 2", "one-cycle", "step", "all together"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["float32", "float64"])
def test_a_curve_is_pytorchs(name: str, way: str) -> None:
    for package in ("torch", "sklearn", "transformers", "onnxscript"):
        pytest.importorskip(package)
    from scripts.curve_networks import CASES
    from scripts.curve_settings import options
    from scripts.training_curves import compare

    case = CASES["digits_mlp"]
    row = compare("digits_mlp", case, name, options(20)[name], 20, way)
    assert "| yes |" in row
    assert ("steps clipped" in row) is (name in ("clip by value", "clip by norm", "all together"))


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["default", "torchscript"])
@pytest.mark.parametrize("name", ["gpt", "gpt2_masked", "mixer", "vit", "unet", "albert_tiny"])
def test_a_default_export_follows_pytorch(name: str, exporter: str) -> None:
    """All of the network's numbers train, and 200 losses are PyTorch's."""
    for package in ("torch", "sklearn", "transformers", "onnxscript"):
        pytest.importorskip(package)
    from scripts.curve_networks import CASES
    from scripts.curve_settings import OPTIMIZERS
    from scripts.training_curves import compare

    row = compare(name, CASES[name], "adamw", OPTIMIZERS["adamw"], 200, exporter=exporter)
    assert "| yes |" in row and "numbers for" not in row


@pytest.mark.parametrize("way", ["moved32", "moved64"])
def test_pytorch_beside_itself(way: str) -> None:
    for package in ("torch", "sklearn", "transformers"):
        pytest.importorskip(package)
    from scripts.curve_networks import CASES
    from scripts.curve_settings import options
    from scripts.training_curves import compare

    case, setting = CASES["digits_mlp"], options(20)["all together"]
    row = compare("digits_mlp", case, "all together", setting, 20, way)
    assert "| yes |" in row and "| 0.0e+00 at" not in row
