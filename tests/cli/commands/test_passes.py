from __future__ import annotations

import json
from collections.abc import Callable

from onnxgrad.passes.base import all_passes
from onnxgrad.passes.pipeline import PRESETS, Pipeline
from onnxgrad.passes.presets import DESCRIBED
from tests.cli.conftest import Result

Run = Callable[..., Result]


def test_every_pass_and_preset_is_listed(run: Run) -> None:
    done = run("passes")
    assert (done.code, done.err) == (0, "")
    for name in (*all_passes(), *PRESETS):
        assert name in done.out
    assert "max_growth=" in done.out


def test_a_preset_gives_its_reasons(run: Run) -> None:
    done = run("passes", "default")
    assert (
        done.code == 0
        and "first, so that no pass below works" in done.out
        and "canonical" not in done.out
    )


def test_json_can_be_given_back(run: Run) -> None:
    data = json.loads(run("passes", "--json", "-").out)
    for preset in data["presets"]:
        listed = ",".join(step["pass"] for step in preset["passes"])
        assert Pipeline.of(passes=listed) == Pipeline.of(preset["name"])
    assert all(p["law"].endswith(".") and "\n" not in p["law"] for p in data["passes"])


def test_every_step_has_a_reason() -> None:
    assert [s.item for p in DESCRIBED.values() for s in p.steps if not s.why] == []


def test_unknown_name(run: Run) -> None:
    done = run("passes", "nonsense")
    assert done.code == 2 and len(done.lines) == 1
