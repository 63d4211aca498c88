"""What the runs of a proof reached: counted, raised by more cases, required, and said."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.verify import Report, verify
from onnxgrad.verify.coverage.counters import (
    CHOSEN,
    THRESHOLDS,
    Elements,
    Item,
    joined,
    rows_item,
)
from onnxgrad.verify.coverage.differing import Differing
from onnxgrad.verify.coverage.summary import NOT_ASKED, Coverage, Sizes, wanted_share
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.reference.evaluate import Reference
from tests.helpers import ROOT, parse

X, Y = "float[N,4] x", "float[N,4] y"
f32 = np.float32


def model(body: str, given: str = X, result: str = Y, opset: int = 23, **constants: Any) -> Any:
    """A model of one graph; constants by name."""
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> '
        f"g ({given}) => ({result}) {{ {body} }}"
    )
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def branches(condition: str, then: str, given: str = X, **constants: Any) -> Any:
    return model(
        f"""{condition} y = If (c) <
          then_branch = t () => (float[N,4] p) {{ p = {then} (x) }},
          else_branch = e () => (float[N,4] q) {{ q = Neg (x) }}>""",
        given,
        **constants,
    )


def missing(report: Report) -> str:
    return "; ".join(report.coverage.details)


# ---- what must be refuted ------------------------------------------------------------------------

CLIP = model("y = Clip (x, lo, hi)", lo=f32(0), hi=f32(6))
SHIFTED = "d = Sub (x, seven) r = Relu (d) y = Mul (r, k)"
TABLE = np.random.default_rng(0).standard_normal((30_000, 4)).astype(f32)
OTHER_ROW = TABLE.copy()
OTHER_ROW[12_345, 2] += 1
LOOKUP = ("y = Gather (t, ids)", "int64[N,S] ids", "float[N,S,4] y")
DEFAULT = "<float[4] k = {1,2,3,4}> { y = Mul (x, %s) }"
NORM = "t = Add (s, big) e = Sqrt (t) y = Sub (e, ten)"
SKIP = "s = com.microsoft.SkipSimplifiedLayerNormalization (x, k, ga)" + NORM
LOWERED = "z = Add (x, k) s = RMSNormalization <epsilon = %s> (z, ga)" + NORM
OF_NORM = {"ga": np.ones(8, f32), "big": f32(100), "ten": f32(10)}
TWO = "float[N,8] x, float[N,8] k"


def with_default(read: str) -> Any:
    return parse(f"g ({X}, float[4] w = {{1,2,3,4}}) => ({Y}) {DEFAULT % read}")


REFUTED = {
    "a bound that the other lacks": (CLIP, model("y = Relu (x)")),
    "a factor behind a shifted Relu": (
        model(SHIFTED, seven=f32(7), k=f32(1)),
        model(SHIFTED, seven=f32(7), k=f32(2)),
    ),
    "one row of 30,000": (model(*LOOKUP, t=TABLE), model(*LOOKUP, t=OTHER_ROW)),
    "a default that is ignored": (with_default("w"), with_default("k")),
    "an epsilon behind a shift": (
        model(SKIP, TWO, "float[N,8] y", **OF_NORM),
        model(LOWERED % "1e-5", TWO, "float[N,8] y", **OF_NORM),
    ),
    "a branch that few values take": (
        branches("s = ReduceSum <keepdims = 0> (x) c = Greater (s, k)", "Tanh", k=f32(30)),
        branches("s = ReduceSum <keepdims = 0> (x) c = Greater (s, k)", "Abs", k=f32(30)),
    ),
}


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("what", REFUTED)
def test_what_must_be_refuted(what: str, turned: bool) -> None:
    a, b = REFUTED[what]
    assert verify(*((b, a) if turned else (a, b))).verdict == "different"


def test_the_right_epsilon_is_equal() -> None:
    a = REFUTED["an epsilon behind a shift"][0]
    assert verify(a, model(LOWERED % "1e-12", TWO, "float[N,8] y", **OF_NORM)).ok


# ---- what may be named as not covered ------------------------------------------------------------

SUM = "s = ReduceSum <keepdims = 0> (x) c = Greater (s, k)"
LARGEST = "s = ReduceMax <keepdims = 0> (x) c = Equal (s, k)"
WORD = "b = Equal (w, k) c = Squeeze (b)"
MAGIC = np.array(["magic"], object)
TURNS = """y = Loop (n, , x) <body = b (int64 i, bool on, float[N,4] s) => (bool go, float[N,4] r) {
  go = Identity (on) late = Greater (i, fifty) v = Where (late, %s, one) r = Mul (s, v) }>"""
LATE = {"fifty": np.int64(50), "one": f32(1), "two": f32(2)}
NAMED = {
    "a sum above a million": (
        branches(SUM, "Tanh", k=f32(1e6)), branches(SUM, "Abs", k=f32(1e6)), "then not taken"),
    "a largest value of a half": (
        branches(LARGEST, "Tanh", k=f32(0.5)), branches(LARGEST, "Abs", k=f32(0.5)),
        "then not taken"),
    "a magic word": (
        branches(WORD, "Tanh", f"{X}, string[1] w", k=MAGIC),
        branches(WORD, "Abs", f"{X}, string[1] w", k=MAGIC), "Equal → 'b': never true"),
    "the turns after fifty": (
        model(TURNS % "two", f"int64 n, {X}", **LATE), model(TURNS % "one", f"int64 n, {X}", **LATE),
        "Greater → 'late': never true"),
}  # fmt: skip


@pytest.mark.parametrize("what", NAMED)
def test_what_is_named_as_not_covered(what: str) -> None:
    a, b, name = NAMED[what]
    report = verify(a, b)
    assert report.ok or report.verdict == "different"  # to be refuted is better
    assert not report.ok or name in missing(report)
    required = verify(a, b, coverage=">= 100%")
    assert not required.ok and (required.verdict == "different" or "coverage is" in str(required))


# ---- tables --------------------------------------------------------------------------------------


def test_rows_that_no_run_reads_are_not_proved() -> None:
    body = "i = Cast <to = 7> (x) m = Mod (i, n) y = Gather (t, m)"
    a, b = (model(body, X, "float[N,4,4] y", t=t, n=np.int64(30_000)) for t in (TABLE, OTHER_ROW))
    report = verify(a, b)
    assert report.verdict == "not proved"
    assert report.summary == "not proved: 1 row of 't' differ that no run read"
    assert report.to_dict()["coverage"]["unread"] == {"t": 1}
    # who computed the weights anew knows that they differ: then it is listed
    vouched = verify(a, b, weights="rounded")
    assert vouched.ok and "'t': 1 row that differ were read by no run" in missing(vouched)
    assert verify(a, a).ok


def test_up_to_64_rows_that_differ_are_read() -> None:
    table = np.concatenate([TABLE, TABLE])  # of a model that is not small
    changed = table.copy()
    changed[::4] = np.nextafter(changed[::4], f32(9))  # all of them too little to be seen
    a, b = model(*LOOKUP, t=table), model(*LOOKUP, t=changed)
    mask = Differing(proof_model(a), proof_model(b)).mask("t")
    assert mask is not None and mask.any(axis=1).sum() == 15_000
    report = verify(a, b, weights="rounded")
    assert report.coverage.unread["t"] <= 15_000 - 64
    assert any("rows that differ of t" in str(case) for case in report.cases)


def test_a_small_model_reads_all_rows_that_differ() -> None:
    changed = TABLE.copy()
    changed[::2] = np.nextafter(changed[::2], f32(9))
    report = verify(model(*LOOKUP, t=TABLE), model(*LOOKUP, t=changed))
    assert report.coverage.unread == {} and report.verdict != "not proved"


def test_rows_are_counted() -> None:
    counted = Reference(model(*LOOKUP, t=TABLE))
    counted.run({"ids": np.array([[3, 9], [3, -1]])}, count=1)
    (rows,) = [item for item in counted.covered(1) if item.kind == "rows"]
    assert (rows.where, rows.reached, rows.of) == ("t", 3, 30_000)
    assert [*np.flatnonzero(np.unpackbits(np.frombuffer(rows.rows, np.uint8)))] == [3, 9, 29_999]
    assert verify(model(*LOOKUP, t=TABLE), model(*LOOKUP, t=TABLE)).coverage.line.endswith(
        "of 30,000 rows of 't'"
    )


def test_two_lookups_of_one_table_are_one() -> None:
    a, b = (Item("rows", "t", 1, 8, "7 rows not read", bytes([mask])) for mask in (128, 1))
    assert joined([a, b]) == [Item("rows", "t", 2, 8, "6 rows not read", bytes([129]))]
    w, v = (Item("weights", "w", n, 8) for n in (3, 5))
    assert joined([w, v]) == [v]


# ---- the counters --------------------------------------------------------------------------------

BOUNDS = {
    "y = Relu (x)": 1, "y = Clip (x, lo, hi)": 2, "y = Clip (x, , hi)": 1, "y = Max (x, hi)": 1,
    "y = HardSigmoid (x)": 2, "y = HardSwish (x)": 2, "y = Shrink (x)": 2,
    "y = ThresholdedRelu <alpha = 2.0> (x)": 1, "c = Less (x, hi) y = Where (c, x, lo)": 1,
    "y = Clip (x, lo, largest)": 1, "y = Max (x, x)": 0, "y = Max (hi, lo)": 0, "y = Tanh (x)": 0,
}  # fmt: skip


# what else an operator that jumps has to meet: its bounds themselves
AT = {
    "y = Shrink (x)": [-0.5, 0.5, 9, -9], "y = ThresholdedRelu <alpha = 2.0> (x)": [2, 2, 2, 2],
    "c = Less (x, hi) y = Where (c, x, lo)": [6, 6, 6, 6],
}  # fmt: skip


@pytest.mark.parametrize("body", BOUNDS)
def test_both_sides_of_a_bound_count(body: str) -> None:
    given = model(body, lo=f32(0), hi=f32(6), largest=np.finfo(f32).max)
    counted = Reference(given)

    def reached(x: Any) -> int:
        counted.run({"x": np.asarray(x, f32).reshape(1, 4)}, count=1)
        items = [item for item in counted.covered(1) if item.kind == "thresholds"]
        assert len(items) == BOUNDS[body]
        return sum(item.reached for item in items)

    assert reached([-9] * 4) == 0
    assert reached([9, 9, 9, np.nan]) == (BOUNDS[body] if body not in AT else 0)
    assert reached(AT.get(body, [0] * 4)) == BOUNDS[body]
    counted.run({"x": np.full((1, 4), -9, f32)}, count=2)  # who counts anew begins anew
    assert not any(item.reached for item in counted.covered(2) if item.kind == "thresholds")
    assert counted.covered(1) == []


def test_a_case_that_is_not_taken_is_forgotten() -> None:
    counted = Reference(CLIP)
    counted.run({"x": np.full((1, 4), -1, f32)}, count=1)
    counted.covered(1, "mark")
    counted.run({"x": np.full((1, 4), 9, f32)}, count=1)
    assert all(item.reached for item in counted.covered(1))
    assert not any(item.reached for item in counted.covered(1, "back"))


@pytest.mark.parametrize(("turns", "seen"), [(0, "0"), (1, "1"), (5, "many")])
def test_turns_of_a_loop(turns: int, seen: str) -> None:
    counted = Reference(model(TURNS % "two", f"int64 n, {X}", **LATE))
    counted.run({"n": np.array(turns), "x": np.ones((1, 4), f32)}, count=1)
    items = [item for item in counted.covered(1) if item.kind == "loop turns"]
    assert [item.reached for item in items] == [int(seen == name) for name in ("0", "1", "many")]
    assert items[0].where == f"Loop → 'y' (at most {turns})"


def test_a_function_counts_once_for_all_of_its_calls() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
    g (float[4] x) => (float[4] y) { a = own.f (x) b = Neg (x) y = own.f (b) }
    <domain: "own", opset_import: ["" : 20]> f (p) => (q) { q = Relu (p) }"""
    counted = Reference(onnx.parser.parse_model(text))
    counted.run({"x": np.ones(4, f32)}, count=1)
    (item,) = counted.covered(1)
    assert item == Item("thresholds", "f: Relu → 'q'", 1, 1, "")


@pytest.mark.parametrize(
    ("body", "size"),
    [("y = MatMul (x, w)", (4, 4)), ("y = Gemm (x, w)", (4, 4)), ("y = Mul (x, w)", (1, 4)),
     ("v = Transpose (w) y = MatMul (x, v)", (4, 4))],
)  # fmt: skip
def test_weights_that_meet_zeros_do_not_matter(body: str, size: tuple[int, int]) -> None:
    counted = Reference(model(body, "float[1,4] x", "float[1,4] y", w=np.ones(size, f32)))
    counted.run({"x": np.array([[1, 0, 2, 0]], f32)}, count=1)
    (item,) = counted.covered(1)
    assert (item.kind, item.reached, item.of) == ("weights", np.prod(size) // 2, np.prod(size))
    counted.run({"x": np.array([[0, 1, 0, 0]], f32)}, count=1)
    assert counted.covered(1)[0].reached == np.prod(size) * 3 // 4


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (4, 2, 3)])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (1, 2, 1)])
def test_elements_of_a_broadcast_weight(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    """An element can matter if one of the elements that it is multiplied by is not 0."""
    rng = np.random.default_rng(len(shape) + 7 * len(other))
    for _ in range(5):
        x, counter = (
            rng.integers(0, 2, other),
            Elements("w", prod(shape), "xw", 1, CHOSEN["Mul", 1]),
        )
        counter.see({}, [x, np.ones(shape)], [], 0)
        owner = np.broadcast_to(
            np.arange(prod(shape)).reshape(shape), np.broadcast_shapes(shape, other)
        )
        met = np.unique(owner[np.broadcast_to(x, owner.shape) != 0])
        assert counter.met.shape == shape and np.flatnonzero(counter.met).tolist() == met.tolist()


def test_a_size_that_does_not_run_is_said() -> None:
    fixed = model("y = Reshape (x, s)", X, "float[1,4] y", s=np.array([1, 4]))
    report = verify(fixed, fixed)
    (said,) = report.coverage.warnings
    assert report.ok and said.startswith("N=2 does not run in onnxruntime: ")
    assert said in str(report)


def test_an_empty_dimension_is_tried() -> None:
    same = model("y = Tanh (x)")
    assert verify(same, same).coverage.sizes == (Sizes("N", (0, 1, 2)),)
    # a -1 that nothing decides where the size is 0
    flat = model("z = Tanh (x) y = Reshape (z, s)", s=np.array([0, -1]))
    report = verify(same, flat)
    assert report.ok and "N=0 runs in the original, and not in the second model" in str(report)
    # the other way round it is the original that does not run
    assert verify(flat, same).coverage.sizes[0].ran == (1, 2)
    longer = model("a = Concat <axis = 0> (x, x) y = Slice (a, zero, end)", zero=[0], end=[2])
    assert verify(same, same, dims={"N": 2}).coverage.sizes[0].ran == (2,)
    assert not verify(same, longer).ok


def test_attention_that_refuses_an_empty_batch_is_said() -> None:
    chain = model(
        """kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, kt) c = Mul (s, h)
        p = Softmax <axis = -1> (c) y = MatMul (p, v)""",
        "float[batch,2,8,4] q, float[batch,2,8,4] k, float[batch,2,8,4] v",
        "float[batch,2,8,4] y",
        h=f32(0.5),
    )
    done = optimize(chain, report=True)
    assert "Attention" in [node.op_type for node in done.model.graph.node]
    (said,) = done.proof.coverage.warnings
    assert said.startswith("batch=0 runs in the original, and not in the second model")


# ---- what is asked for, and said -----------------------------------------------------------------


@pytest.mark.parametrize("text", [">= 95%", "95%", ">=0.95", "0.95", 0.95])
def test_a_share_may_be_written_so(text: str | float) -> None:
    assert wanted_share(text) == pytest.approx(0.95)


@pytest.mark.parametrize("text", ["", "much", "95", "-1%", "<= 95%", "nan", 2, True])
def test_and_not_so(text: str | float) -> None:
    with pytest.raises(InputError, match=r"coverage: write a share such as '>= 95%' or 0\.95"):
        wanted_share(text)


def test_what_is_unknown_is_no_share() -> None:
    same = model("y = Relu (x)")
    report = verify(same, same, checks=["onnxruntime"])
    assert report.ok and report.coverage.line == "covered: unknown (onnxruntime alone ran)"
    assert report.coverage.share is None
    asked = verify(same, same, checks=["onnxruntime"], coverage="1%")
    assert asked.summary == (
        "not proved: coverage is unknown (onnxruntime alone ran), and coverage= asks for 0.01"
    )
    assert verify(same, same, coverage="100%").ok
    given = verify(same, same, inputs={"x": np.ones((1, 4), f32)}, coverage="100%")
    assert not given.ok and given.coverage.share == 0.0


def test_the_line_has_the_worst_tables() -> None:
    items = [Item("rows", name, 1, n, "") for name, n in (("a", 2), ("b", 900), ("c", 1)) * 1]
    items += [Item("rows", "d", 1, 3, "2 rows not read")]
    line = Coverage(items=(*items, Item("branches", "If → 'y'", 1, 1))).line
    assert line == (
        "covered: 1 of 1 branches, 1 of 900 rows of 'b', 1 of 3 rows of 'd', 1 more table in part"
    )


def test_the_second_model_is_heard_where_it_has_more() -> None:
    once = model("t = Tanh (x) y = Clip (t, lo, hi)", lo=f32(-2), hi=f32(2))
    report = verify(model("y = Tanh (x)"), once)
    names = "second model: Clip → 'y': never below -2; second model: Clip → 'y': never above 2"
    assert report.coverage.line == (
        f"covered: and of the second model 0 of 2 thresholds; not reached: {names}"
    )
    assert names in missing(report) and report.coverage.share == 0.0


@pytest.mark.parametrize("name", ["bert", "whisper", "lstmcell"])
def test_packaged_models_are_equal_and_counted(name: str) -> None:
    path = ROOT / "models" / f"{name}.onnx"
    report = verify(path, path)
    assert report.ok and report.coverage.share == 1.0


def _drawn(rng: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    """A pair of models of each kind that differ, with other numbers."""
    low, high = np.sort(rng.uniform(-40, 40, 2)).astype(f32)
    at, k = f32(rng.uniform(-40, 40)), f32(rng.uniform(1.1, 3))
    rows = int(rng.integers(100, 50_000))
    table = rng.standard_normal((rows, 4)).astype(f32)
    other = table.copy()
    other[rng.integers(rows)] *= -1
    eps, wrong = 10.0 ** -rng.permutation([4, 6, 9, 12])[:2]
    total = f32(rng.uniform(-60, 60))
    bound = "y = Clip (x, lo, hi)"
    norm = "y = RMSNormalization <epsilon = %s> (x, ga)"
    wide, ones = ("float[N,8] x", "float[N,8] y"), np.ones(8, f32)
    return {
        "clip": (model(bound, lo=low, hi=high), model(bound, lo=low, hi=high + f32(1))),
        "shift": (model(SHIFTED, seven=at, k=f32(1)), model(SHIFTED, seven=at, k=k)),
        "table": (model(*LOOKUP, t=table), model(*LOOKUP, t=other)),
        "epsilon": (model(norm % eps, *wide, ga=ones), model(norm % wrong, *wide, ga=ones)),
        "branch": (branches(SUM, "Exp", k=total), branches(SUM, "Abs", k=total)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_other_numbers_are_refuted_as_well(seed: int) -> None:
    pairs = _drawn(np.random.default_rng(seed))
    equal = [what for what, (a, b) in pairs.items() if verify(a, b).verdict != "different"]
    assert equal == []
    assert [what for what, (a, _) in pairs.items() if not verify(a, a).ok] == []


def test_proofs_that_are_joined_cover_together() -> None:
    """The sides of a bound and the rows of a table add up; another model's items name its place."""
    bound = Item(THRESHOLDS, "Sign s", 0, 1, "never above 0")
    above = Item(THRESHOLDS, "Sign s", 0, 1, "never below 0")
    parts = [
        Coverage(
            (bound, rows_item("t", b"\x80", 8)), sizes=(Sizes("N", (1,), {0: "does not run"}),)
        ),
        Coverage((above, rows_item("t", b"\x01", 8)), sizes=(Sizes("N", (0, 2)),)),
        Coverage((above,)),
        Coverage(why=NOT_ASKED),
    ]
    whole = Coverage.merge(parts, ["", "", "at M=2", "on cuda"])
    assert [(i.where, i.reached) for i in whole.items] == [
        ("Sign s", 1),
        ("t", 2),
        ("at M=2: Sign s", 0),
    ]
    assert whole.sizes == (Sizes("N", (0, 1, 2)),) and not whole.why
    three = [Item(THRESHOLDS, "R", 0, 1, f"never {words}") for words in ("x or y", "x or z")]
    assert Coverage.merge([Coverage((i,)) for i in three], ["", ""]).missed == ["R: never x"]
