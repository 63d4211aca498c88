"""Cases beyond the usual ones never change the verdict: one at which the original dies or is too slow
is left out, and listed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import verify
from onnxgrad.verify.float64_check import Oracle
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, courtesy
from tests.helpers import parse

MODEL = "g (float[N,4] x) => (float[N,4] y) <float k = {%s}> { a = Mul (x, k) y = Tanh (a) }"
PAIRS = [("2", "equal"), ("2.0001", "different")]


def _notes(second: str) -> tuple[str, list[str], list[str]]:
    report = verify(parse(MODEL % "2"), parse(MODEL % second), weights="same")
    left_out = [note for note in report.notes if note.startswith("left out:")]
    return report.verdict, left_out, [str(case) for case in report.cases]


@pytest.mark.parametrize(("second", "verdict"), PAIRS)
def test_a_case_that_is_slow_in_float64_is_left_out(
    second: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[Oracle.__module__]  # by name `verify` is the function
    monkeypatch.setattr(module, "courtesy", lambda longest: 0.0)
    found, left_out, cases = _notes(second)
    assert found == verdict and not any("wide" in case for case in cases)
    assert "left out: seed 0 with wide values 1, N=2 (too slow in float64)" in left_out


def _dies(deployed: bool) -> Callable[..., Any]:
    """Returns a `Session.run` that dies on values beyond the usual ones."""
    run = Session.run

    def dying(self: Session, feeds: Any, **options: Any) -> Any:
        if bool(self._config["optimize"]) == deployed and (np.abs(feeds["x"]) > 20).any():
            raise RunFailed("killed", "died of SIGFPE")
        return run(self, feeds, **options)

    return dying


@pytest.mark.parametrize(("second", "verdict"), PAIRS)
@pytest.mark.parametrize("deployed", [False, True])
def test_a_case_at_which_the_original_dies_is_left_out(
    second: str, verdict: str, deployed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it dies only with optimisations: otherwise nothing would run with them."""
    monkeypatch.setattr(Session, "run", _dies(deployed))
    found, left_out, cases = _notes(second)
    assert found == verdict and not any("wide values 1" in case for case in cases)
    assert any("wide values 1" in note and "died of SIGFPE" in note for note in left_out)


def test_optional_runs_do_not_raise_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of two seconds would allow the next twenty, and then two hundred."""
    assert courtesy(0.01) == 2.0 and courtesy(3.0) == 30.0
    limits: list[float] = []
    monkeypatch.setattr(Session, "_ask", lambda self, limit, *rest: limits.append(limit) or {})
    session = Session((), (), (), {}, "cpu", "", "", {})
    session.run({}, timeout=100.0)
    session._seconds[:] = [0.5]
    for _ in range(2):
        session.run({}, optional=True)
    assert limits == [100.0, 5.0, 5.0] and session._seconds == [0.5]


@pytest.mark.parametrize("empty", ["N,0", "0,3", "2,0,0"])
def test_an_input_without_elements_has_no_row_to_raise(empty: str) -> None:
    """The search for values beyond 65504 raises the rows of every input."""
    text = f"""g (float[{empty}] e, float[N,4] x) => (float[N,4] y) {{
        h = Cast <to = 10> (e) k = Cast <to = 10> (x) q = ReduceSum <keepdims = 0> (h)
        c = Add (k, q) t = Tanh (c) y = Cast <to = 1> (t) }}"""
    assert verify(parse(text), parse(text)).verdict == "equal"
