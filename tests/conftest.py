"""Fixtures for every test: `models_dir`, `fetched`, `parse`, `golden`; hypothesis profiles; `--update-golden`, `--near`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import onnx
import pytest

import onnxgrad
from onnxgrad.rewrite import slips
from scripts.fetch_models import LIGHT, fetch
from tests import helpers, near

NEAR = pytest.StashKey[set[str]]()  # of `pytest --near`: the test files
MANY = 6  # cases up to which all of a test are in the default run

# pytest-xdist says 80 to its workers, a terminal what it is: here tables are as wide as in a pipe
os.environ.pop("COLUMNS", None)

# hundreds of children import the package, each for a second longer where nothing keeps its bytecode:
# who wants none beside the sources gets it in pytest's own folder, pytest-xdist's workers too
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(helpers.ROOT / ".pytest_cache" / "bytecode"))

# a shell's background jobs ignore Ctrl+C, and their children too: tests that send it would wait in vain
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a law of ours that fails is a bug to see here, not a rewrite less
slips.raising = True

hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files in tests/text"
    )
    parser.addoption(
        "--near",
        action="store_true",
        help="run the tests of what differs from main, and of its importers",
    )
    parser.addoption(
        "--many-cases", action="store_true", help="run all cases of tests that have many"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--near"):
        files = near.changed(helpers.ROOT)
        config.stash[NEAR] = near.selected(helpers.ROOT, files)


def pytest_report_header(config: pytest.Config) -> str | None:
    wanted = config.stash.get(NEAR, None)
    return None if wanted is None else f"near: {', '.join(sorted(wanted)) or 'nothing changed'}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.stash.get(NEAR, None)
    if wanted is None or not collection_path.is_relative_to(helpers.ROOT):
        return None
    return True if near.is_left_out(collection_path, helpers.ROOT, wanted) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with many cases, the default run has some: under the mark `covering` those that cover the others, else
    every third, or with `--many-cases` all. The rest is slow.
    """
    every = 1 if config.getoption("--many-cases") else 3
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        mark = of_one_test[0].get_closest_marker("covering")
        kept = {*range(0, len(of_one_test), 1 if len(of_one_test) <= MANY else every)}
        if mark:
            values = [item.callspec._idlist for item in of_one_test]  # type: ignore[attr-defined]
            kept = helpers.covering(values, *mark.args)
        for i, item in enumerate(of_one_test):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("exact8") and helpers.saturates_products():
        pytest.skip("onnxruntime saturates sums of 8-bit products on this processor (no VNNI)")


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
def rules_of_one_test() -> Iterator[None]:
    """What a test registers is gone after it."""
    with onnxgrad.temporary_rules():
        yield
