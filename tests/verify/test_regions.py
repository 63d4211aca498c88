"""A model in which one last bit decides a quantum is compared between its discontinuities."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper

from onnxgrad import optimize
from onnxgrad.verify import proof, verify
from onnxgrad.verify.regions import comparison
from onnxgrad.verify.regions.cuts import Side, paired
from tests.helpers import parse

LAYERS, SIZE = 10, 16


def chain(*, factored: bool = False, static: bool = False) -> ModelProto:
    """Layers that round their input to 8 bits, multiply integers, and amplify. `factored`: the
    scales are applied in another order.
    """
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    x = "x"
    for i in range(LAYERS):
        w = rng.integers(-63, 64, (SIZE, SIZE)).astype(np.int8)  # 7 bits: no kernel saturates
        weights |= {f"w{i}": w, f"s{i}": np.array(0.02, np.float32)}
        weights |= {f"b{i}": rng.normal(size=SIZE).astype(np.float32)}
        if static:
            weights |= {f"a{i}": np.array(0.01, np.float32), f"z{i}": np.array(128, np.uint8)}
            nodes.append(helper.make_node("QuantizeLinear", [x, f"a{i}", f"z{i}"], [f"q{i}"]))
        else:
            outputs = [f"q{i}", f"a{i}", f"z{i}"]
            nodes.append(helper.make_node("DynamicQuantizeLinear", [x], outputs))
        nodes.append(helper.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"z{i}"], [f"i{i}"]))
        nodes.append(helper.make_node("Cast", [f"i{i}"], [f"f{i}"], to=1))
        if factored:
            nodes.append(helper.make_node("Mul", [f"f{i}", f"a{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Mul", [f"p{i}", f"s{i}"], [f"m{i}"]))
        else:
            nodes.append(helper.make_node("Mul", [f"a{i}", f"s{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Mul", [f"f{i}", f"p{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"h{i}"]))
        nodes.append(helper.make_node("Tanh", [f"h{i}"], [f"t{i}"]))
        x = f"t{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, ["N", SIZE])], [value(x, 1, ["N", SIZE])],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def rows(count: int = 6000) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"x": np.random.default_rng(1).normal(size=(count, SIZE)).astype(np.float32)}


def test_a_model_that_differs_from_itself_is_proved_by_regions() -> None:
    report = verify(chain(), chain(factored=True), inputs=rows())
    assert report.verdict == "equal", str(report)
    assert report.regions is not None
    assert report.regions.cuts == {"DynamicQuantizeLinear": LAYERS, "Tanh": 1}
    assert report.regions.end_to_end[0].rel > 1e-2
    worst = report.regions.worst
    assert worst is not None and worst.tolerance < 1e-5
    assert "by regions between 11 cuts" in report.summary
    assert any("end to end, t9 differs by" in line for line in report.regions.lines)
    assert report.to_dict()["regions"]["end_to_end"][0]["output"] == "t9"


@pytest.mark.parametrize("second", ["y = Round (x)", "b = Sub (x, h) y = Ceil (b)"])
def test_a_rounding_that_differs_at_every_tie_is_not_equal(second: str) -> None:
    """Floor (x + 0.5) differs from itself by a step, but not at all ties the same way."""
    text = "g (float[N,6] x) => (float[N,6] y) <float h = {0.5}> { %s }"
    first = parse(text % "a = Add (x, h) y = Floor (a)")
    assert verify(first, parse(text % second)).verdict in ("different", "not proved")
    assert verify(first, parse(text % "a = Add (h, x) y = Floor (a)")).verdict == "equal"


def test_regions_cost_nothing_if_whole_runs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: ModelProto) -> None:
        raise AssertionError("a model was searched for discontinuities")

    monkeypatch.setattr(comparison, "Side", fails)
    assert verify(chain(), chain(factored=True), seeds=[0]).regions is None


@pytest.mark.slow
def test_a_rounding_that_is_decomposed_is_compared_by_its_results() -> None:
    other = optimize(chain(factored=True), passes="legalize", verify=False)
    assert not any(n.op_type == "DynamicQuantizeLinear" for n in other.graph.node)
    report = verify(chain(), other, inputs=rows())
    assert report.verdict == "equal", str(report)
    assert report.regions is not None
    assert report.regions.cuts == {"DynamicQuantizeLinear": LAYERS, "Tanh": 1}
    next(n for n in other.graph.node if n.op_type == "Round").op_type = "Floor"
    assert verify(chain(), other, inputs=rows()).verdict == "different"


def renamed(model: ModelProto) -> ModelProto:
    """The same model with other names of values."""
    for node in model.graph.node:
        node.output[:] = [n if n == f"t{LAYERS - 1}" else f"{n}'" for n in node.output]
        own = {t.name for t in model.graph.initializer} | {"x"}
        node.input[:] = [n if n in own else f"{n}'" for n in node.input]
    return model


def test_discontinuities_without_names_are_paired_by_order() -> None:
    a, b = Side(chain()), Side(renamed(chain()))
    cuts, left = paired(a, b)
    assert not left and [cut.certain for cut in cuts] == [False] * LAYERS + [True]
    assert [cut.others[0] for cut in cuts[:-1]] == [f"q{i}'" for i in range(LAYERS)]
    assert verify(chain(), renamed(chain(factored=True)), inputs=rows()).verdict == "equal"


def test_names_of_other_values_are_not_trusted() -> None:
    """In another export the counted names may be those of other layers."""
    other, up = chain(factored=True), {f"{c}{i}": f"{c}{i + 1}" for c in "qazp" for i in range(9)}
    up |= {f"{c}9": f"{c}0" for c in "qazp"}
    for node in other.graph.node:
        node.output[:] = [up.get(name, name) for name in node.output]
        node.input[:] = [up.get(name, name) for name in node.input]
    report = verify(chain(), other, inputs=rows())
    assert report.verdict == "equal", str(report)


def test_a_discontinuity_without_a_counterpart_is_not_judged() -> None:
    other = renamed(chain(factored=True))
    node = next(n for n in other.graph.node if n.output[0] == "q4'")
    node.domain = "local"
    other.functions.append(
        helper.make_function(
            "local",
            "DynamicQuantizeLinear",
            ["x"],
            ["q", "a", "z"],
            [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "a", "z"])],
            [helper.make_opsetid("", 21)],
        )
    )
    other.opset_import.append(helper.make_opsetid("local", 1))
    report = verify(chain(), other, inputs=rows())
    assert report.verdict == "not proved", str(report)
    assert any("has no counterpart" in why for why in report.unproved)


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[ModelProto], None]:
    def fault(model: ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == name:
                array = numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(change(array).astype(array.dtype), name))

    return fault


def one_more(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made[3, 5] += 1 if made[3, 5] < 127 else -1
    return made


def moved_zero(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(129, np.uint8), "z"))
    next(n for n in model.graph.node if n.output[0] == "q5").input[2] = "z"


def swapped(model: ModelProto) -> None:
    node = next(n for n in model.graph.node if n.output[0] == "h4")
    node.op_type = "Sub"


def bypassed(model: ModelProto) -> None:
    next(n for n in model.graph.node if n.output[0] == "t4").input[0] = "m4"


FAULTS: dict[str, Callable[[ModelProto], None]] = {
    "scale": changed("s5", lambda a: a * 1.01),
    "weight": changed("w5", one_more),
    "step": changed("a5", lambda a: a * 1.01),
    "zero point": moved_zero,
    "bias": changed("b5", lambda a: a * (1 + 1e-4)),
    "sign": swapped,
    "no bias": bypassed,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_region_is_found(fault: str) -> None:
    wrong = chain(static=True, factored=True)
    FAULTS[fault](wrong)
    report = verify(chain(static=True), wrong, inputs=rows(1000))
    assert report.verdict == "different", str(report)


def detector(bias: float, *, fused: bool = False, off: float = 1.0) -> ModelProto:
    """A product and a Sigmoid that sees nothing. `fused`: with the factor in the weights."""
    rng = np.random.default_rng(0)
    w, s = rng.normal(size=(24, 8)).astype(np.float32), rng.uniform(0.2, 0.6, 8).astype(np.float32)
    before = "p = MatMul(x, w)" if fused else "q = MatMul(x, w) p = Mul(q, s)"
    model = parse(
        f"g (float[N,24] x) => (float[N,8] y) {{ {before} l = Add(p, b) y = Sigmoid(l) }}"
    )
    weights = {"w": w * s * np.float32(off) if fused else w, "b": np.float32([bias])}
    weights |= {} if fused else {"s": s}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    return model


@pytest.mark.parametrize("bias", [-12.0, -15.0, -17.0])
def test_small_outputs_are_compared_before_their_sigmoid(bias: float) -> None:
    given = {"x": np.random.default_rng(1).normal(size=(500, 24)).astype(np.float32)}
    report = verify(detector(bias), detector(bias, fused=True), inputs=given)
    assert report.verdict == "equal", str(report)
    wrong = verify(detector(bias), detector(bias, fused=True, off=1.001), inputs=given)
    assert wrong.verdict == "different", str(wrong)


DECISIONS = {
    "Round": "d = Round(p)",
    "Floor": "d = Floor(p)",
    "Cast": "c = Cast <to = 6> (p) d = Cast <to = 1> (c)",
    "ArgMax": "i = ArgMax <axis = 1, keepdims = 0> (p) d = Gather <axis = 0> (table, i)",
    "TopK": "v, i = TopK <axis = 1> (p, one) s = Squeeze(i, last) d = Gather <axis = 0> (table, s)",
    "NonMaxSuppression": "s = Unsqueeze(p, one) r = Shape(p) v = Concat <axis = 0> (r, four) "
    "e = Expand(boxes, v) c = NonMaxSuppression(e, s, one) i = Gather <axis = 1> (c, two) "
    "d = Gather <axis = 0> (table, i)",
    "Greater": "c = Greater(p, half) d = Where(c, three, half)",
}


def decides(by: str, *, order: bool = False, bent: bool = False) -> ModelProto:
    """A product decides, and a product of the decision decides again. `order`: of the sums."""
    rng = np.random.default_rng(3)
    w = rng.normal(size=(SIZE, SIZE)).round(1).astype(np.float32)  # products at ties
    place = rng.permutation(SIZE) if order else np.arange(SIZE)
    weights = {"w": w[place], "u": w.T.copy(), "table": w, "order": place, "one": np.int64([1]),
               "three": np.float32(3), "half": np.float32(0.5), "last": np.int64([1])}  # fmt: skip
    sides = np.arange(SIZE, dtype=np.float32)[:, None] + np.float32([0, 0, 0.5, 0.5])
    weights |= {"boxes": sides[None], "four": np.int64([4]), "two": np.int64(2)}
    weights["u"][2, 3] *= 1.001 if bent else 1.0
    again = re.sub(r"\b([ecrdvis])\b", r"\1_2", DECISIONS[by]).replace("(p", "(m")
    model = parse(
        f"g (float[N,{SIZE}] x) => (float[N,{SIZE}] y) {{ o = Gather <axis = 1> (x, order) "
        f"p = MatMul(o, w) {DECISIONS[by]} m = MatMul(d, u) {again} "
        f"t = Sin(d_2) z = Gather <axis = 1> (t, order) y = MatMul(z, w2) }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    weights["w2"] = w[place]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items() if n in used
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("by", DECISIONS)
def test_other_decisions_are_cut(by: str) -> None:
    given = {"x": np.round(np.random.default_rng(1).normal(size=(2000, SIZE)), 1).astype("f")}
    report = verify(decides(by), decides(by, order=True), inputs=given)
    assert report.verdict == "equal", str(report)
    assert report.regions is not None and report.regions.cuts[by] == 2
    wrong = verify(decides(by), decides(by, order=True, bent=True), inputs=given)
    assert wrong.verdict == "different", str(wrong)


def test_whole_runs_decide_where_they_agree_and_no_region_could_be_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An int8 encoder from a package whose float64 check is over its budget: "equal, by regions" with a region far off."""
    unjudged = comparison.Judgement(
        comparison.Regions({"Round": 1}, (), {}),
        comparison.Check(comparison.CHECK, False, "of a budget"),
        [],
        ["of a budget"],
    )
    monkeypatch.setattr(proof, "by_regions", lambda *_: unjudged)
    report = verify(chain(), chain(), seeds=[0])
    assert report.verdict == "equal" and "by regions" not in report.summary
    assert "regions decide nothing, whole runs do: of a budget" in str(report)
