"""A record is one file that holds all that `rebase` needs, and no law goes round it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.load import load_own
from onnxgrad.jobs.rebasing import record as module
from onnxgrad.jobs.rebasing.record import Record
from onnxgrad.jobs.rebasing.recording import Recording
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite import slips
from onnxgrad.rewrite.trace import Trace
from scripts.sweep_laws import laws
from scripts.sweep_rebase import sweep
from tests.helpers import MODELS_DIR, parse


@pytest.fixture
def counting_slips() -> Iterator[None]:
    slips.raising = False
    yield
    slips.raising = True


def recorded(model: onnx.ModelProto) -> Record:
    program, trace = load_own(model), Trace()
    recording = Recording(program)
    trace.derivations = recording.derivations
    Pipeline.of().run(program, trace)
    return recording.finish(rounded=trace.rounded)


def test_a_file_holds_no_weights() -> None:
    """Its original has the graph, the sizes and the numbers of formulas; a second file is equal."""
    model = onnx.load(MODELS_DIR / "gpt2.onnx")
    record = recorded(model)
    data = record.to_bytes()
    again = Record.of_bytes(data, "a file")
    assert again.to_bytes() == data and len(data) < 50_000
    assert [n.op_type for n in again.original.graph.node] == [n.op_type for n in model.graph.node]
    weights = set(again.weights)
    assert "transformer.wte.weight" in weights or len(weights) > 100
    for tensor in again.original.graph.initializer:
        assert bool(tensor.raw_data) is (tensor.name not in weights)
    formula = [n for n in again.initializers if n not in weights and n not in again.fixed]
    assert formula and all(onnx.numpy_helper.to_array(again.initializers[n]).size for n in formula)


def test_equal_input_gives_equal_records() -> None:
    model = onnx.load(MODELS_DIR / "lstmcell.onnx")
    assert recorded(model).to_bytes() == recorded(model).to_bytes()


@pytest.mark.parametrize("at", [0, 20, 60, -1])
def test_a_damaged_file(at: int) -> None:
    data = bytearray(recorded(parse(SCALED)).to_bytes())
    data[at] ^= 0x55
    with pytest.raises(InputError, match=r"a file: (a damaged record|not a record of)"):
        Record.of_bytes(bytes(data), "a file")


def test_a_record_of_another_version() -> None:
    data = recorded(parse(SCALED)).to_bytes().replace(b"onnxgrad rebase 2", b"onnxgrad rebase 1", 1)
    with pytest.raises(
        InputError, match="a file: a record of another version of onnxgrad: optimise again with"
    ):
        Record.of_bytes(data, "a file")


SCALED = """g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}> {
  p = MatMul (x, w)  y = Mul (p, s) }"""


def test_statistics_are_weights_and_masks_are_not() -> None:
    text = """g (float[1,2,4] x) => (float[1,2,4] y) <float[2] w = {1, 2}, float[2] b = {3, 4}, float[2] m = {0.5, 1},
      float[2] v = {1, 2}, float[2,4] mask = {0, -10000, -10000, -10000, 0, 0, -10000, -10000}> {
      n = BatchNormalization (x, w, b, m, v)  p = Add (n, mask)  y = Softmax (p) }"""
    record = recorded(parse(text))
    assert set(record.weights) == {"w", "b", "m", "v"} and not record.fixed


def test_steps_that_compute_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a rule that draws random numbers: the record is tried on the weights that it was made with."""
    computed = Record.constants

    def wrong(self: Record, weight: Any) -> Iterator[tuple[str, Any]]:
        for name, array in computed(self, weight):
            yield name, array + 1

    monkeypatch.setattr(module.Record, "constants", wrong)
    with pytest.raises(NotProved, match="not rebasable: the recorded steps compute another '"):
        recorded(parse(SCALED))


@pytest.mark.usefixtures("counting_slips")
def test_no_law_goes_round_the_record() -> None:
    counts, failures = sweep(1, models=60)
    assert not failures, failures
    assert counts["compared"] > 25


@pytest.mark.slow
@pytest.mark.usefixtures("counting_slips")
def test_more_models_of_each_law() -> None:
    counts, failures = sweep(2, models=4 * len(laws()))
    assert not failures, failures
    assert counts["compared"] > 300 and counts["a fact failed"] > 5


@pytest.mark.slow
@pytest.mark.usefixtures("counting_slips")
def test_the_sweep_finds_constants_without_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxgrad.ir.var.tracing", lambda array, source, kept: array)
    _, failures = sweep(1, models=len(laws()))
    assert sum("is stale" in line for line in failures) > 5
