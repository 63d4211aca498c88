"""The real models: they run on generated feeds, at two sizes where they have symbols, and equal themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.verify import Report, feeds_for, run, verify
from onnxgrad.verify.feeds.dims import dim_plans
from onnxgrad.verify.reference.evaluate import Reference
from scripts.fetch_models import NAMES
from tests.helpers import MODELS_DIR, ROOT
from tests.verify.test_proof import scaled

COMMITTED = sorted(path.name for path in MODELS_DIR.glob("*.onnx"))


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_models_run_on_generated_feeds(name: str) -> None:
    model = onnx.load(MODELS_DIR / name)
    found = run(model, feeds_for(model, seed=0, dims=dim_plans(model)[0]), optimize=False)
    assert found and all(
        np.isfinite(v).all()
        for v in found.values()
        if isinstance(v, np.ndarray) and v.dtype.kind == "f"
    )


# how much each proof ran: a faster proof has to run as much
SIZES = json.loads((ROOT / "tests/data/proof_sizes.json").read_text(encoding="utf-8"))


def size_of(report: Report) -> dict[str, object]:
    runs = {name: check.cases for name, check in report.checks.items()}
    return {"provider": report.provider, "feeds": len(report.cases), "runs": runs}


@pytest.mark.parametrize("name", ["bert.onnx", "t5.onnx", "vit.onnx"])
def test_a_committed_model_equals_itself_in_both_checks(name: str) -> None:
    report = verify(MODELS_DIR / name, MODELS_DIR / name)
    assert report.ok and all(check.ran and not check.why for check in report.checks.values())
    assert size_of(report) == SIZES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMITTED)
def test_every_committed_model_equals_itself_and_not_a_copy_off_by_a_percent(name: str) -> None:
    path = MODELS_DIR / name
    report = verify(path, path)
    assert report.ok and all(check.ran and not check.why for check in report.checks.values()), str(
        report
    )
    assert not report.unstable and size_of(report) == SIZES[name]
    model = onnx.load(path)
    products = [
        n.output[0] for n in model.graph.node if n.op_type in ("MatMul", "Conv", "Gemm", "LSTM")
    ]
    changed = verify(model, scaled(model, products[len(products) // 2], 1.01))
    assert not changed.ok and not changed.checks["float64"].worst.ok


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fetched_model_equals_itself_and_the_reference_is_near(
    name: str, fetched: Callable[[str], Path]
) -> None:
    """On generated feeds. Near is what float32 costs: two of them subtract nearly equal squares, one has outputs of 1e-5."""
    path = fetched(name)
    report = verify(path, path, checks=["float64", "onnxruntime"], float64_budget=60)
    assert report.ok and all(check.ran for check in report.checks.values()), str(report)
    assert max(report.noise.values(), default=0.0) < 1e-2, report.noise


def test_the_reference_is_fast_enough_for_a_transformer() -> None:
    import time

    model = onnx.load(MODELS_DIR / "bert.onnx")
    feeds = feeds_for(model, seed=0)
    compiled = Reference(model)
    started = time.perf_counter()
    compiled.run(feeds)
    assert time.perf_counter() - started < 2.0
