"""Fixtures for every test: `models_dir`, `fetched`, `parse`, `golden`; hypothesis profiles; `--update-golden`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import onnx
import pytest

from onnxgrad.grad import registry
from onnxgrad.passes.base import PASSES
from scripts.fetch_models import LIGHT, fetch
from tests import helpers

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files in tests/text")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The committed real models."""
    return helpers.MODELS_DIR


@pytest.fixture(scope="session")
def fetched() -> Callable[[str], Path]:
    """`fetched(name)`: path of a real model of scripts/fetch_models.py, brought on first use; for tests marked `slow`.

    A model that cannot be had fails the test, unless `ONNXGRAD_FETCH_FAILED` says that fetching was tried before, in
    vain: then the test skips and gives that reason.
    """

    def find(name: str) -> Path:
        reason = os.environ.get("ONNXGRAD_FETCH_FAILED")
        if reason and name not in LIGHT and not (helpers.cache_dir() / f"{name}.onnx").is_file():
            pytest.skip(f"{name} could not be fetched: {reason}")
        return fetch(name)

    return find


@pytest.fixture(scope="session")
def parse() -> Callable[..., onnx.ModelProto]:
    """`parse(text, opset=20, ir_version=10)`: see `tests.helpers.parse`."""
    return helpers.parse


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: compare with tests/text/name.txt, or rewrite it under `--update-golden`."""
    update = bool(request.config.getoption("--update-golden"))
    return lambda name, text: helpers.compare_golden(name, text, update=update)


@pytest.fixture(autouse=True)
def registered_rules() -> Iterator[None]:
    """The tables of gradient rules and of passes are for the whole process: each test leaves them as they were."""
    tables: list[dict[Any, Any]] = [registry._RULES, PASSES]
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before):
        if table != known:
            table.clear()
            table.update(known)
