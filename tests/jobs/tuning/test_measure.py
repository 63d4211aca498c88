"""Choices are kept where they win beyond the noise, one after the other, within a time."""

from __future__ import annotations

from dataclasses import field

import pytest
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.jobs.tuning import LATE
from onnxgrad.jobs.tuning.measure import Measuring, tune, wins
from onnxgrad.passes.pipeline import Pipeline
from tests.jobs.tuning.test_choices import THREE, TWO, branches, products

MERGED = "combine-parallel-matmul: "


@pytest.mark.parametrize(
    ("ratio", "spread", "won"),
    [
        (0.9, 0.05, True),
        (0.9, 0.1, False),
        (0.98, 0.0, True),
        (0.995, 0.0, False),
        (1.1, 0.0, False),
    ],
)
def test_wins(ratio: float, spread: float, won: bool) -> None:
    assert wins(ratio, spread) is won


def count(model: ModelProto) -> int:
    return sum(n.op_type in ("MatMul", "Gemm") for n in model.graph.node)


@frozen
class Counting(Measuring):
    """The time of a model is its number of products to some power."""

    power: float = 1.0
    spread: float = 0.01
    asked: list[float] = field(default_factory=list)

    def ratio(self, a: ModelProto, b: ModelProto, seconds: float) -> tuple[float, float]:
        self.asked.append(seconds)
        return (count(b) / count(a)) ** self.power, self.spread


def test_what_wins_is_kept() -> None:
    told: list[tuple[str, float]] = []
    measuring = Counting({}, 1e6)
    found = tune(branches(), Pipeline.of(), measuring, lambda *what: told.append(what))
    kept = {d.choice: d for d in found.decisions if d.kept}
    assert list(kept) == [f"{MERGED}every kind, merged"]
    assert kept[f"{MERGED}every kind, merged"].ratio == pytest.approx(4 / 7)
    # what is merged already is merged no more
    (three,) = (d for d in found.decisions if THREE in d.choice)
    assert not three.kept and three.ratio is None and three.why == "it changes nothing"
    assert found.total is not None and found.total.ratio == pytest.approx(4 / 7)
    assert products(branches(), found.pipeline) == 4
    assert [what for what, _ in told] == [d.choice for d in found.decisions]
    assert all(0 <= part < 1 for _, part in told) and all(s <= 2 for s in measuring.asked)


@pytest.mark.parametrize(("power", "spread"), [(-1.0, 0.0), (1.0, 0.9), (0.0, 0.0)])
def test_what_does_not_win_is_not(power: float, spread: float) -> None:
    found = tune(branches(), Pipeline.of(), Counting({}, 1e6, power, spread))
    assert not any(d.kept for d in found.decisions) and found.total is None
    assert found.pipeline == Pipeline.of()
    assert any(d.ratio is not None for d in found.decisions)


def test_no_time() -> None:
    found = tune(branches(), Pipeline.of(), Counting({}, 1e-9))
    assert {d.why for d in found.decisions} == {LATE}


def test_all_together_are_confirmed() -> None:
    @frozen
    class Deceiving(Counting):
        """Whatever is new seems quicker, until both are seen again."""

        def ratio(self, a: ModelProto, b: ModelProto, seconds: float) -> tuple[float, float]:
            seen = len(self.asked)
            self.asked.append(seconds)
            return (0.5 if seen == 0 else 1.2), 0.0

    found = tune(branches(), Pipeline.of(), Deceiving({}, 1e6))
    assert not any(d.kept for d in found.decisions) and found.pipeline == Pipeline.of()
    assert found.total is not None and not found.total.kept and found.total.ratio == 1.2
    assert any(d.why == "all together are not faster" for d in found.decisions)


def test_a_form_that_does_not_run_is_not_kept() -> None:
    class Refusing(Counting):
        def ratio(self, a: ModelProto, b: ModelProto, seconds: float) -> tuple[float, float]:
            raise InputError("no kernel")

    found = tune(branches(), Pipeline.of(), Refusing({}, 1e6))
    assert any(d.why == "no kernel" for d in found.decisions)
    assert not any(d.kept for d in found.decisions)


@pytest.mark.slow
def test_measured_for_real() -> None:
    found = tune(branches(), Pipeline.of(), Measuring({"provider": "cpu"}, 2.0))
    measured = [d for d in found.decisions if d.ratio is not None]
    assert any(TWO in d.choice or "every kind" in d.choice for d in measured)
    assert all(d.ratio and d.ratio > 0 and d.spread is not None for d in measured)


@pytest.mark.parametrize(
    ("options", "cpu"),
    [({}, True), ({"threads": 2}, False), ({"provider": "cuda"}, False)],
)
def test_which_time_counts(options: dict[str, object], cpu: bool) -> None:
    assert Measuring(options).is_cpu_time is cpu
