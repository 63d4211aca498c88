"""The original's half of a proof, begun before the passes: the same report, and nothing left."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import from_array

from onnxgrad.errors import OnnxgradError
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.rule_passes import remove_noops
from onnxgrad.verify import Report, float64_check, original_runs, verify
from onnxgrad.verify.original_runs import Ahead, OriginalRuns
from onnxgrad.verify.request import EarlyRuns, Request
from onnxgrad.verify.running.session import Session
from tests.helpers import parse
from tests.jobs.test_optimize import Wrong, network

ADD = "g (float[N,4] x) => (float[N,4] o) { s = Add(x, x) o = Tanh(s) }"
MUL = "g (float[N,4] x) => (float[N,4] o) <float two = {2}> { s = Mul(x, two) o = Tanh(s) }"
WRONG = "g (float[N,4] x) => (float[N,4] o) <float two = {2.001}> { s = Mul(x, two) o = Tanh(s) }"
LONG = f"g (float[N,64] x) => (float[N,64] o) <float[64] w = {{{', '.join(map(str, range(64)))}}}> {{ s = Mul(x, w) o = Tanh(s) }}"
RANDOM = "g (float[N,4] x) => (float[N,4] o) { r = RandomNormalLike(x) o = Add(x, r) }"
# Gather refuses the indices that a proof makes up; the second model's Sqrt is NaN throughout
REFUSES = "g (int64[3] i) => (float[3] o) <float[2] w = {1, 2}> { j = Add(i, i) k = Mul(j, j) l = Add(k, i) m = Neg(l) n = Sub(m, k) o = Gather(w, n) }"
NAN = "g (float[N,4] x) => (float[N,4] o) { a = Abs(x) b = Neg(a) c = Sub(b, a) o = Log(c) }"
# the difference is that of other roundings of the constants
ROOT = "g (float[N,6] x) => (float[N,6] y) <float k = {%r}, float e = {64}> { t = Tanh (x) m = %s (t, k) y = Pow (m, e) }"
DIES = """
g (int64[1] x) => (int64[1] y) <int64[1] a = {-9223372036854775808}, int64[1] b = {-1}> { c = Div(a, b) y = Add(x, c) }
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = threading.active_count()
    monkeypatch.setattr(original_runs, "cores", lambda: 2)
    yield
    assert threading.active_count() == before


def outcome(report: Report | OnnxgradError) -> Any:
    if isinstance(report, OnnxgradError):
        return type(report), str(report)
    return {k: v for k, v in report.to_dict().items() if k != "seconds"}


def compared(a: Any, b: Any, options: Mapping[str, Any], early: bool) -> Any:
    try:
        if not early:
            return outcome(verify(a, b, **options))
        with Ahead(a, Request(**options)) as begun:
            return outcome(verify(a, b, early=begun, **options))
    except OnnxgradError as error:
        return outcome(error)


def test_the_first_case_runs_in_float64_while_others_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, original = dict[int, set[threading.Thread]](), float64_check.Oracle.original

    def counted(self: Any, feeds: Mapping[str, Any], *jitter: Any) -> Any:
        threads.setdefault(id(feeds), set()).add(threading.current_thread())
        return original(self, dict(feeds), *jitter)

    monkeypatch.setattr(float64_check.Oracle, "original", counted)
    model = parse(ADD)
    request = Request()
    with Ahead(model, request) as begun:
        runs = begun.runs(begun.original(), begun.original(), request)
        assert runs is not None and len(runs.trials) > 1
        (first,), *others = (threads.pop(id(trial.feeds)) for trial in runs.trials)
        assert not threads and all(trial.exact is not None for trial in runs.trials)
        assert [{begun.line._thread}] * len(others) == others and first is not begun.line._thread


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (ADD, MUL, {}),
        (ADD, WRONG, {}),
        (ADD, MUL, {"checks": ("float64",), "seeds": (3,)}),
        (ADD, MUL, {"checks": ("onnxruntime",), "threads": 2, "dims": {"N": 5}}),
        (ADD, MUL, {"inputs": {"x": np.ones((2, 4), np.float32)}}),
        (ADD, MUL, {"float64_budget": 1e-9}),
        (ADD, MUL, {"inputs": {"y": np.ones((2, 4), np.float32)}}),
        (RANDOM, RANDOM, {}),
        (REFUSES, REFUSES, {}),
        (NAN, NAN, {}),
        (ROOT % (0.70710677, "Mul"), ROOT % (1.4142135, "Div"), {}),
        (DIES, DIES, {}),
        (DIES.replace("Div", "Mul"), DIES, {}),
    ],
)
def test_the_report_is_that_of_a_proof_that_begins_later(
    a: str, b: str, options: dict[str, Any]
) -> None:
    models = parse(a), parse(b)
    assert compared(*models, options, early=True) == compared(*models, options, early=False)


@pytest.mark.parametrize(("beside", "small"), [(False, True), (True, True), (False, False)])
def test_runs_happen_once(
    beside: bool, small: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As many runs in onnxruntime as without, and the second model's are early too. `beside`: the
    original has weights beside its file. If the models are not `small`, those on the cases that are
    searched for are early as well.
    """
    monkeypatch.setattr(original_runs, "small", lambda proto: small)
    models: list[Any] = [parse(LONG), parse(LONG.replace("x, w", "w, x"))]
    if beside:
        models[0] = tmp_path / "m.onnx"
        model = parse(LONG)
        model.graph.initializer[0].CopyFrom(from_array(np.arange(64, dtype=np.float32), "w"))
        onnx.save(model, models[0], save_as_external_data=True, size_threshold=0)
    runs: list[str] = []
    run, given, go_on = Session._ask, EarlyRuns.opened, OriginalRuns._run_ahead
    ahead: list[int] = []  # the numbers of cases
    monkeypatch.setattr(
        OriginalRuns,
        "_run_ahead",
        lambda self, feeds: (ahead.append(len(feeds)), go_on(self, feeds)),
    )
    monkeypatch.setattr(
        Session, "_ask", lambda self, t, verb, *a: (runs.append(verb), run(self, t, verb, *a))[1]
    )
    opened: list[Session | None] = []

    def watch(self: EarlyRuns, *words: Any) -> Session | None:
        opened.append(given(self, *words))
        return opened[-1]

    monkeypatch.setattr(EarlyRuns, "opened", watch)
    counts = []
    for early in (False, True):
        runs.clear()
        compared(*models, {}, early=early)
        counts.append(len(runs))
    assert counts[0] == counts[1] > 0
    found = [session for session in opened if session is not None]
    assert len(found) == 5 and not any(session.known for session in found), "each result was used"
    assert small == (len(ahead) == 2), "once in either proof, and once for each case"


def test_other_options_than_those_begun_run_again() -> None:
    a, b = parse(ADD), parse(MUL)
    with Ahead(a, Request(seeds=(0,))) as early:
        report = verify(a, b, early=early, seeds=(4, 5))
    assert outcome(report) == compared(a, b, {"seeds": (4, 5)}, early=False)


@pytest.mark.slow
def test_optimize_names_the_wrong_rewrite_and_proves_weights_beside_the_file(
    tmp_path: Path,
) -> None:
    words = []
    for early in (False, True):
        with pytest.raises(RewriteRefuted) as refused:
            optimize_program(network(), Pipeline((remove_noops(), Wrong())), ahead=early)
        words.append(str(refused.value))
    assert words[0] == words[1] and "number 4, tanh_is_nearly_this" in words[0]
    onnx.save(network(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    reports = [
        optimize_program(tmp_path / "m.onnx", Pipeline.of("clean"), ahead=early).report
        for early in (False, True)
    ]
    assert all(reports) and outcome(reports[0]) == outcome(reports[1])  # type: ignore[arg-type]


def test_one_core_random_operators_and_large_models_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert original_runs.may_run_ahead(parse(ADD), 100)
    assert not original_runs.may_run_ahead(parse(RANDOM), 100)
    assert not original_runs.may_run_ahead(parse(ADD), 3 << 30)
    monkeypatch.setattr(original_runs, "cores", lambda: 1)
    assert not original_runs.may_run_ahead(parse(ADD), 100)


@pytest.mark.slow
def test_a_loop_that_never_ends_on_an_empty_tensor_is_cut_and_listed() -> None:
    """Its run at size 0 took all of the time limit, and nothing was proved."""
    model = parse("""g (float[K] x) => (float[K] y) {
      ten = Constant <value_float = 10.0> () one = Constant <value_float = 1.0> ()
      s0 = ReduceSum <keepdims = 0> (x) c0 = Less (s0, ten)
      y = Loop (, c0, x) <body = b (int64 i, bool c, float[K] h) => (bool d, float[K] o) {
        o = Add (h, one) s = ReduceSum <keepdims = 0> (o) d = Less (s, ten) }> }""")
    report = verify(model, model, timeout=100)
    assert report.verdict == "equal" and report.seconds < 60
    (sizes,) = report.coverage.sizes
    assert sizes.symbol == "K" and 0 not in sizes.ran and "no answer within" in sizes.empty


@pytest.mark.parametrize(("factor", "times"), [(1.4142135, 1), (1.0, 0)])
def test_constants_are_compared_ahead_if_a_case_needs_them(
    factor: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, in the thread that works while children do; not at all if the first case agrees."""
    a, b = ROOT % (1.0 / factor, "Mul"), ROOT % (factor, "Div")
    threads: list[str] = []
    find = float64_check.roundings

    def watched(*models: Any) -> Any:
        threads.append(threading.current_thread().name)
        return find(*models)

    monkeypatch.setattr(original_runs, "small", lambda proto: False)
    monkeypatch.setattr(float64_check, "roundings", watched)
    assert compared(parse(a), parse(b), {}, early=True)["verdict"] == "equal"
    assert len(threads) == times and threading.current_thread().name not in threads
