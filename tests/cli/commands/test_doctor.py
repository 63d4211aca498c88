from __future__ import annotations

import json
from collections.abc import Callable

import onnxgrad
from tests.cli.conftest import Result

Run = Callable[..., Result]


def test_report(run: Run) -> None:
    done = run("doctor")
    assert (done.code, done.err) == (0, "") and "cpu" in done.out and "cuda" in done.out


def test_json(run: Run) -> None:
    data = json.loads(run("doctor", "--json", "-").out)
    assert data["onnxgrad"] == onnxgrad.__version__ and data["providers"]["cpu"]["works"] is True
