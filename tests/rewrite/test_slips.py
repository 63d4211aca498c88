"""A law of ours that fails costs one rewrite, with a warning; a caller's ends the run, and is named with file and line."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onnxgrad
from onnxgrad import P, capture, op
from onnxgrad.errors import InputError, InternalError, RuleFailed, RuleWarning
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.rewrite import slips
from onnxgrad.rewrite.combine import apply_family, combine
from onnxgrad.rewrite.context import PatternContext, rewrite_bindings
from onnxgrad.rewrite.trace import Slip, Trace
from onnxgrad.rewrite.worklist import Rule, apply_rules, count, rewrite
from tests.helpers import parse

x, w = capture("x w")
TEXT = """g (float[2,4] x, float[4,4] v) => (float[2,4] y, float[2,4] z) {
    a = Neg(x) b = Neg(a) r = Relu(b) y = Identity(r) s = MatMul(x, v) t = Sigmoid(s) z = Neg(t) }"""


def does_not_type(x: Var) -> Any:
    return op.MatMul(x, op.Reshape(op.Add(x, 1.0), [3, 5]))


def raises(x: Var) -> Any:
    op.Add(x, 1.0)
    return [][0]


def of_another_type(x: Var) -> Any:
    return op.Cast(op.Add(x, 1.0), to=11)


def is_no_value(x: Var) -> Any:
    return op.Add(x, 1.0), 3


SLIPS = (does_not_type, raises, of_another_type, is_no_value)


def ours(build: Callable[..., Any]) -> Rule:
    """A law at Relu, as if this package had it."""

    def law(x: Var) -> Any:
        return build(x)

    law.__module__ = "onnxgrad.laws.wrong"
    law.__name__ = build.__name__
    return rewrite(P.Relu(x), shrinks=count("Relu"))(law)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for users: a law of ours that fails is declined."""
    monkeypatch.setattr(slips, "raising", False)
    yield


@pytest.mark.parametrize("build", SLIPS)
def test_a_law_of_ours_is_declined_and_leaves_every_byte(build: Any, lenient: None) -> None:
    program, trace = load(parse(TEXT)), Trace(pass_name="p")
    before = to_proto(program).SerializeToString()
    with pytest.warns(RuleWarning, match=f"{build.__name__} failed at r: .*Relu.* report this"):
        assert apply_rules(program.main, [ours(build)], trace) == 0
    assert to_proto(program).SerializeToString() == before
    program.main.check()
    (slip,) = trace.slips
    assert (slip.rule, slip.pass_name, slip.where) == (build.__name__, "p", "r: f32[2,4] = Relu(b)")
    assert slip.reason and not trace.rewrites
    # the same place in a later round is no news
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_rules(program.main, [ours(build)], trace)
    assert trace.slips == [slip] and isinstance(slip, Slip)


@pytest.mark.parametrize("build", SLIPS)
def test_everything_else_goes_on_and_is_proved(build: Any, lenient: None, tmp_path: Path) -> None:
    with pytest.warns(RuleWarning):
        done = onnxgrad.optimize(parse(TEXT), passes=[ours(build), "default"], report=True)
    assert sorted(n.op_type for n in done.model.graph.node) == ["MatMul", "Neg", "Relu", "Sigmoid"]
    assert done.proof.verdict == "equal"
    (said,) = done.to_dict()["slips"]
    assert said["rule"] == build.__name__ and said["pass"] == "own-laws" and said["reason"]
    assert f"1 rewrite left out because a rule of onnxgrad failed: {build.__name__}" in str(done)
    assert f"left out: {build.__name__} failed at r" in done.to_html()


def test_the_switch_of_the_tests() -> None:
    assert slips.raising
    for build in SLIPS:
        with pytest.raises(InternalError):
            onnxgrad.optimize(parse(TEXT), passes=[ours(build)])


def test_five_warnings_for_a_law_and_all_in_the_record(lenient: None) -> None:
    body = " ".join(f"r{i} = Relu(x)" for i in range(9))
    model = parse(
        f"g (float[2] x) => ({', '.join(f'float[2] r{i}' for i in range(9))}) {{ {body} }}"
    )
    trace = Trace()
    with pytest.warns(RuleWarning) as seen:
        apply_rules(load(model).main, [ours(raises)], trace)
    assert len(seen) == 5 and len(trace.slips) == 9


def test_a_model_that_is_not_valid_is_to_blame(lenient: None) -> None:
    model = parse("g (float[2] x) => (float[3] y) { r = Relu(x) y = Neg(r) }")
    with pytest.raises(InputError, match="not a valid ONNX model"):
        onnxgrad.optimize(model, passes=[ours(raises)], verify=False)


def test_of_model_limits_and_answers_a_law_may_speak(lenient: None) -> None:
    def limit(x: Var) -> Any:
        raise onnxgrad.LimitReached("out of time")

    with pytest.raises(onnxgrad.LimitReached):
        onnxgrad.optimize(parse(TEXT), passes=[ours(limit)])


def test_an_endless_law_of_ours_stops_there(lenient: None) -> None:
    def forever(x: Var) -> Any:
        return op.Relu(op.Identity(x))

    law = ours(forever)
    trace = Trace()
    with pytest.warns(RuleWarning, match="until its fuel of"):
        apply_rules(load(parse(TEXT)).main, [law], trace)
    assert len(trace.slips) == 1


# ---- a caller's ----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", SLIPS)
def test_a_callers_rule_ends_the_run_with_file_line_and_cause(build: Any) -> None:
    rule = rewrite(P.Relu(x), shrinks=count("Relu"))(build)
    with pytest.raises(RuleFailed) as caught:
        onnxgrad.optimize(parse(TEXT), passes=[rule])
    error = caught.value
    assert (error.rule, error.file, error.exit_code) == (build.__name__, __file__, 1)
    first = build.__code__.co_firstlineno
    assert first <= error.line <= first + 3 and f"line {error.line}" in str(error)
    assert isinstance(error.__cause__, IndexError if build is raises else InternalError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rule, again.line) == (str(error), error.rule, error.line)


def test_every_way_to_hand_a_rule_over() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Relu(x) }")

    def key(x: Var) -> Any:
        raise KeyError(x.name)

    def fails(x: list[Var]) -> Any:
        raise KeyError(x[0].name)

    def wrong(m: Any) -> Any:
        raise KeyError(m[x].name)

    by_key = combine(P.Relu(x), by=key)(fails)
    whole = combine(P.Relu(x), by=lambda x: x)(fails)
    context = PatternContext(P.Relu(x))
    for call in (
        lambda: onnxgrad.optimize(model, passes=[by_key]),
        lambda: onnxgrad.optimize(model, passes=[whole]),
        lambda: onnxgrad.rewrite_call(P.Relu(x), raises, model),
        lambda: rewrite_bindings(context, wrong, model),
        lambda: rewrite_bindings(context.where(lambda m: m[x].nothing), wrong, model),
        lambda: onnxgrad.rewrite_call(P.Relu(x.where(lambda v: v.nothing)), raises, model),
    ):
        with pytest.raises(RuleFailed, match=r"test_slips.py, line \d+\)") as caught:
            call()
        assert isinstance(caught.value.__cause__, (KeyError, AttributeError, IndexError))


# ---- a rule that inserts -------------------------------------------------------------------------


CHAIN = "g (float[N,2] x, float[2,2] v, float[2,2] u) => (float[N,2] y) { h = MatMul(x, v) y = MatMul(h, u) }"


def clip(x: Var, w: Var) -> Any:
    return op.MatMul(op.Clip(x, -1e6, 1e6), w)


@pytest.mark.parametrize("passes", [["mine"], ["mine", "default"], ["default", "mine"]])
def test_a_rule_that_inserts_fires_once_for_each_node(passes: list[str]) -> None:
    guard = rewrite(P.MatMul(x, w))(clip)
    done = onnxgrad.optimize(
        parse(CHAIN),
        passes=[guard if p == "mine" else p for p in passes],
        verify=False,  # which would find a number beyond the bounds
        report=True,
    )
    assert [r.rule for r in done.rewrites].count("clip") == 2
    assert [n.op_type for n in done.model.graph.node].count("Clip") == 2


def test_other_drivers_insert_once_too() -> None:
    pattern = P.MatMul(x, w)

    def by_mapping(m: Any) -> Any:
        return {pattern: clip(m[x], m[w])}

    def whole_family(x: list[Var], w: list[Var]) -> Any:
        return [clip(a, b) for a, b in zip(x, w, strict=True)]

    beside = parse(
        "g (float[N,2] x, float[2,2] v, float[2,2] u) => (float[N,2] y, float[N,2] z)"
        " { y = MatMul(x, v) z = MatMul(x, u) }"
    )
    family = combine(pattern, by=lambda x: x)(whole_family)
    for found in (
        onnxgrad.rewrite_call(pattern, clip, parse(CHAIN)),
        rewrite_bindings(PatternContext(pattern), by_mapping, parse(CHAIN)),
        onnxgrad.optimize(beside, passes=[family], verify=False),
    ):
        assert [n.op_type for n in found.graph.node].count("Clip") == 2


def test_inner_nodes_may_be_a_rules_own_and_a_measure_allows_all() -> None:
    @rewrite(P.Neg(P.Neg(x)))
    def halves(x: Var, root: Binding) -> Any:
        return op.Neg(op.Neg(op.Identity(x)))

    model = parse("g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) c = Neg(b) y = Neg(c) }")
    trace = Trace()
    apply_rules(load(model).main, [halves], trace)
    made = len(trace.rewrites)
    assert 2 <= made <= 3, "a later Neg of the file may stand on a Neg of the rule's"

    @rewrite(P.Neg(P.Neg(x)), shrinks=count("Neg"))
    def gone(x: Var) -> Any:
        return x

    trace = Trace(check_measures=True)
    apply_rules(load(model).main, [gone], trace)
    assert len(trace.rewrites) == 2


def test_several_roots_none_of_which_may_be_its_own() -> None:
    a, b = P.Sin(x), P.Cos(x)
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Sin(x) z = Cos(x) }")

    def again(m: Any) -> Any:
        return {a: op.Sin(op.Identity(m[x])), b: op.Cos(op.Identity(m[x]))}

    def one(m: Any) -> Any:
        return {a: op.Sin(m[x])}

    for rewriter in (again, one):
        trace = Trace()
        rewrite_bindings(PatternContext(a, b), rewriter, model, trace=trace)
        assert len(trace.rewrites) == 1
    with pytest.raises(RuleFailed, match="until its fuel"):
        rewrite_bindings(PatternContext(a, b), one, model, shrinks=count("Sin"))


def test_apply_family_takes_no_branch_that_it_made() -> None:
    @combine(P.Relu(x), by=lambda x: x)
    def inserted(x: list[Var]) -> Any:
        return [op.Relu(v) for v in x]

    block, trace = (
        load(parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Relu(x) }")).main,
        Trace(),
    )
    apply_family(block, inserted, trace)
    apply_family(block, inserted, trace)
    assert len(trace.rewrites) == 1
