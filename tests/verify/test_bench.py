from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.bench import Conditions, Spread, bench, cpu_of_runs, ratio_of_fastest
from onnxgrad.verify.running.child_process import Child
from onnxgrad.verify.running.session import close_sessions, open_session
from tests.helpers import parse

ASK = Child.ask


def product(times: int) -> onnx.ModelProto:
    """`times` products in a row."""
    body = "  ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(times))
    model = parse(f"g (float[1,64] v0) => (float[1,64] v{times}) {{ {body} }}")
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


def test_a_longer_model_takes_longer() -> None:
    report = bench({"short": product(2), "long": product(200)}, rounds=6, seconds=0.2)
    short, long = report.timings
    assert (short.name, long.name) == ("short", "long")
    assert short.wall_ratio == Spread(1.0, 1.0, 1.0) == short.cpu_ratio
    assert long.wall_ratio.median > 3 and long.cpu_ratio.median > 3
    assert 0 < short.wall.low <= short.wall.median <= short.wall.high < long.wall.median
    assert short.runs > long.runs >= 6
    assert json.loads(json.dumps(report.to_dict()))["timings"][1]["wall_ratio"]["median"] > 3
    assert str(report).splitlines()[0].split()[:3] == ["model", "wall", "ms"]


def test_other_work_on_the_machine_changes_no_ratio() -> None:
    """Two rounds of three are disturbed, now the one model and now the other, up to 10 times."""
    quiet, busy = [1.0, 1.0], [3.0, 10.0]
    a = [quiet if i % 3 == 0 else busy for i in range(20)]
    b = [[2 * t for t in (quiet if i % 3 == 1 else busy)] for i in range(20)]
    assert ratio_of_fastest(b, a) == Spread(2.0, 2.0, 2.0)
    assert ratio_of_fastest(b, a).values == 5
    assert ratio_of_fastest(b, a).uncertainty == 0
    # fewer rounds than make a ratio are taken together; nothing measurable counts as equal
    assert ratio_of_fastest(b[:2], a[:2]) == Spread(2.0, 2.0, 2.0)
    assert ratio_of_fastest([[1e-6]], [[0.0]]) == Spread(1.0, 1.0, 1.0)
    assert Spread(1.0, 0.9, 1.1, 4).uncertainty == pytest.approx(1.57 * 0.2 / 2)


def test_a_clock_of_long_ticks_measures_rounds() -> None:
    """Runs of 2 and of 1 milliseconds on a clock that advances every 10: the fastest read 0."""
    slow = [[0.01 if i % 5 == 4 else 0.0 for i in range(20)]] * 4
    fast = [[0.01 if i % 10 == 9 else 0.0 for i in range(40)]] * 4
    assert cpu_of_runs(slow) == [[pytest.approx(0.002)] * 20] * 4
    ratio = ratio_of_fastest(cpu_of_runs(slow), cpu_of_runs(fast))
    assert ratio.median == pytest.approx(2)
    assert cpu_of_runs([[0.5, 1.0], [2.0]]) == [[0.5, 1.0], [2.0]]


def test_all_sessions_are_opened_for_the_measurement() -> None:
    """One that lay in memory before was faster or slower than the same file opened again."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    before = open_session(model)
    asked = []

    def ask(self: Child, timeout: float, verb: str, *arguments: Any, **options: Any) -> Any:
        asked.append(verb)
        return ASK(self, timeout, verb, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "ask", ask)
        bench({"m": model}, rounds=1, seconds=0.01)
    assert asked.index("close") < asked.index("open") < asked.index("time")
    feeds = {"x": np.array([-1, 1], np.float32)}
    close_sessions("cpu")
    assert before.run(feeds)["y"].tolist() == [0, 1]  # what was closed comes back by itself


def test_symbolic_dims_and_given_inputs() -> None:
    model = parse("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    assert bench({"m": model}, Conditions(dims={"N": 5}), rounds=1, seconds=0.01).dims == {"N": 5}
    given = {"x": np.ones((7, 3), np.float32)}
    assert (
        bench({"m": model}, Conditions(inputs=given), rounds=1, seconds=0.01).timings[0].runs >= 1
    )


def test_a_model_that_does_not_run_is_reported() -> None:
    good = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    bad = parse("g (float[2] x) => (float[2] y) { y = NoSuchOperator(x) }")
    report = bench({"good": good, "bad": bad}, rounds=1, seconds=0.01)
    assert [t.name for t in report.timings] == ["good"]
    assert "bad" in report.refused and "bad" in str(report)
    with pytest.raises(InputError, match="does not load"):
        bench({"bad": bad, "good": good}, rounds=1, seconds=0.01)


def test_misuse_is_an_input_error() -> None:
    good = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    other = parse("g (float[2] z) => (float[2] y) { y = Relu(z) }")
    with pytest.raises(InputError, match="cannot share feeds"):
        bench({"good": good, "other": other}, rounds=1, seconds=0.01)
    with pytest.raises(InputError, match="at least one model"):
        bench({}, rounds=1, seconds=0.01)
    with pytest.raises(InputError, match="not an ONNX model"):
        bench({"nothing": b"\xff\xff"}, rounds=1, seconds=0.01)


def test_half_and_bfloat16_inputs() -> None:
    for dtype in ("float16", "bfloat16"):
        model = parse(f"g ({dtype}[2] x) => ({dtype}[2] y) {{ y = Identity(x) }}")
        assert bench({"m": model}, rounds=1, seconds=0.01).timings[0].runs >= 1
