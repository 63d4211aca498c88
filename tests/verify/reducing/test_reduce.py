"""`reduce`: the smallest model that still shows something, valid at every step, the same each time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import Rule, apply_rules, rewrite
from onnxgrad.verify import verify
from onnxgrad.verify.reducing.candidates import STEPS, _resized, _subsets, pruned
from onnxgrad.verify.reducing.reduce import Command, reduce
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import model_of

a, b = capture("a b")


@rewrite(P.Softmax(P.Add(a, b)))
def softmax_ignores_a_mask(a: Var) -> Var:
    """Softmax(a + mask) = Softmax(a): wrong."""
    made: Var = op.Softmax(a, axis=-1)
    return made


@rewrite(P.Mul(P.Sigmoid(a), P.Tanh(b)))
def gate_forgets_its_tanh(a: Var, b: Var) -> Var:
    """Sigmoid(a) Tanh(b) = Sigmoid(a) b: wrong."""
    made: Var = op.Mul(op.Sigmoid(a), b)
    return made


def miscompiled(rule: Rule) -> Callable[[ModelProto], bool]:
    """Whether the model comes out of a pass with this law as another one."""

    def check(model: ModelProto) -> bool:
        program = load(model)
        apply_rules(program.main, [rule], trace := Trace())
        if not trace.rewrites:
            return False
        try:
            return verify(model, to_proto(program), checks=("float64",)).verdict == "different"
        except OnnxgradError:
            return False

    return check


def ops(model: ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def has(*wanted: str) -> Callable[[ModelProto], bool]:
    return lambda model: set(wanted) <= {n.op_type for n in model.graph.node}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("lstmcell", gate_forgets_its_tanh),
        pytest.param("training/bert", softmax_ignores_a_mask, marks=pytest.mark.slow),
    ],
)
def test_a_planted_miscompile(name: str, rule: Rule) -> None:
    model = onnx.load(MODELS_DIR / f"{name}.onnx")
    before = model.SerializeToString(deterministic=True)
    check = miscompiled(rule)
    assert check(model)
    found = reduce(model, check)
    assert len(found.model.graph.node) <= 3 and found.finished, ops(found.model)
    onnx.checker.check_model(found.model, full_check=True)
    assert check(found.model) and model.SerializeToString(deterministic=True) == before
    assert found.model.ByteSize() < 400 and not found.model.graph.value_info


TEXT = """g (float[N,4] x, bool c, int64[2] shape) => (float[N,4] y, float[N,8] z, float[N,4] u)
  <float[4,4] w = {0}, float[4,8] v = {0}, float[4] s = {0}> {
    p = MatMul(x, w)  q = Add(p, s)  r = Tanh(q)  y = Erf(r)
    m = MatMul(r, v)  z = Sigmoid(m)
    u = If (c) <then_branch = t () => (float[N,4] a) { k = Neg(r) a = Sin(k) }, else_branch = e () => (float[N,4] d) { d = Abs(r) }>
  }"""


def model() -> ModelProto:
    made = parse(TEXT)
    rng = np.random.default_rng(0)
    for tensor in made.graph.initializer:
        array = rng.standard_normal(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    made.doc_string = "words"
    made.metadata_props.add(key="k", value="v")
    return made


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (("Tanh",), ["Tanh"]),
        (("Tanh", "Erf"), ["Tanh", "Erf"]),
        (("MatMul",), ["MatMul"]),
        (("Sin",), ["Sin"]),
        (("If",), ["If"]),
    ],
)
def test_what_is_left(wanted: tuple[str, ...], left: list[str]) -> None:
    found = reduce(model(), lambda m: all(w in str(m.graph) for w in wanted))
    assert ops(found.model) == left
    assert (
        not found.model.doc_string and not found.model.metadata_props and found.model.graph.output
    )
    onnx.checker.check_model(found.model, full_check=True)
    assert len(found.model.graph.input) <= (2 if left == ["If"] else 1), (
        "inputs that nothing reads are gone"
    )


def test_nodes_of_nested_bodies_are_bypassed() -> None:
    def if_with_sin(m: ModelProto) -> bool:
        return has("If")(m) and any("Sin" in str(n) for n in m.graph.node)

    found = reduce(model(), if_with_sin)
    (node,) = found.model.graph.node
    assert sorted(len(x.g.node) for x in node.attribute) <= [1, 1]


def test_sizes_and_numbers_shrink() -> None:
    found = reduce(model(), has("MatMul"))
    weight = next(t for t in found.model.graph.initializer)
    assert list(weight.dims) == [1, 1] and not numpy_helper.to_array(weight).any()
    nonzero = reduce(
        model(),
        lambda m: (
            has("MatMul")(m) and any(numpy_helper.to_array(t).any() for t in m.graph.initializer)
        ),
    )
    assert all((numpy_helper.to_array(t) == 1).all() for t in nonzero.model.graph.initializer)


def test_functions_are_opened_and_dropped() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
      g (float[2] x) => (float[2] y) { t = own.f(x) y = own.h(t) }
      <domain: "own", opset_import: ["" : 20]> f (a) => (b) { k = Neg(a) l = Tanh(k) b = Abs(l) }
      <domain: "own", opset_import: ["" : 20]> h (a) => (b) { b = Exp(a) }"""
    found = reduce(parse(text), has("Tanh"))
    assert ops(found.model) == ["Tanh"] and not found.model.functions
    assert [o.domain for o in found.model.opset_import] == [""]
    inside = reduce(
        parse(text), lambda m: any(n.op_type == "Tanh" for f in m.functions for n in f.node)
    )
    assert ops(inside.model) == ["f"] and [
        n.op_type for f in inside.model.functions for n in f.node
    ] == ["Tanh"]


def test_every_candidate_that_is_asked_about_is_valid() -> None:
    def check(m: ModelProto) -> bool:
        onnx.checker.check_model(m, full_check=True)
        load(m).main.check()
        return "Sin" in str(m.graph)

    found = reduce(model(), check)
    assert found.checked > 5 and ops(found.model) == ["Sin"]


def test_the_same_each_time_and_time_bounds_it() -> None:
    runs = [reduce(model(), has("Erf")) for _ in range(2)]
    assert runs[0].model == runs[1].model and runs[0].steps == runs[1].steps

    def slow(m: ModelProto) -> bool:
        time.sleep(0.05)
        return has("Erf")(m)

    found = reduce(model(), slow, seconds=0.12)
    assert not found.finished and has("Erf")(found.model)


def test_nothing_to_do() -> None:
    small = parse("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    found = reduce(small, has("Neg"))
    assert ops(found.model) == ["Neg"] and found.finished


def test_pruning_keeps_what_bodies_read() -> None:
    made = model()
    del made.graph.output[:2]
    pruned(made)
    assert ops(made) == ["MatMul", "Add", "Tanh", "If"] and [v.name for v in made.graph.input] == [
        "x",
        "c",
    ]
    assert [t.name for t in made.graph.initializer] == ["w", "s"]


def test_steps_leave_their_model_alone(tmp_path: Path) -> None:
    given = model()
    before = given.SerializeToString(deterministic=True)
    types = {v.name: v.type for v in [*given.graph.input, *given.graph.output]}
    for _, step in STEPS:
        for candidate in step(given, types):
            assert candidate is not given
    assert given.SerializeToString(deterministic=True) == before
    assert np.asarray(numpy_helper.to_array(given.graph.initializer[0])).size


MODEL = parse("g (float[2] x) => (float[2] y) { y = Tanh(x) }")
OTHER = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
# ends with 7 and says so where there is a Tanh, else with 0
CODE = "import sys; found = b'Tanh' in open(sys.argv[1], 'rb').read(); print('sees it' * found); sys.exit(7 * found)"


def command(
    folder: Path, *rest: str, code: str = CODE, status: int | None = None, says: str = ""
) -> Command:
    return Command([sys.executable, "-c", code, *rest], folder, status, says, timeout=20.0)


def test_what_counts_as_a_failure(tmp_path: Path) -> None:
    for check, fails in (
        (command(tmp_path), True),
        (command(tmp_path, "{}", "another word"), True),
        (command(tmp_path, status=7), True),
        (command(tmp_path, status=1), False),
        (command(tmp_path, says="sees it"), True),
        (command(tmp_path, says="other words"), False),
    ):
        assert check.fails(MODEL) is fails and not check.fails(OTHER), check
    assert command(tmp_path).run(MODEL) == (7, "sees it\n")


def test_a_signal_is_128_and_its_number(tmp_path: Path) -> None:
    assert command(tmp_path, code="import os; os.kill(os.getpid(), 11)").run(MODEL) == (139, "")


def test_the_failure_of_the_original_is_what_is_asked_for(tmp_path: Path) -> None:
    check = command(tmp_path)
    assert check.on_original(MODEL, "m") == check
    assert check.on_original(MODEL, "m", (1, 7)).status == 7
    assert command(tmp_path, status=7).on_original(MODEL, "m", (1, 3)).status == 7
    with pytest.raises(
        InputError,
        match=r"^m: the check must fail on it, but it ends with 7 and says: sees it",
    ):
        check.on_original(MODEL, "m", (1, 3))
    with pytest.raises(InputError, match="the check must fail on it, but it ends with 0"):
        check.on_original(OTHER, "m")


def test_a_command_that_takes_too_long_says_nothing(tmp_path: Path) -> None:
    slow = Command([sys.executable, "-c", "import time; time.sleep(30)"], tmp_path, timeout=0.2)
    assert slow.run(MODEL) == (None, "") and not slow.fails(MODEL)
    with pytest.raises(InputError, match=r"it took longer than 0\.2 s"):
        slow.on_original(MODEL, "m")


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot run no-such-program-here"):
        Command(["no-such-program-here"], tmp_path).fails(MODEL)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 16, 33, 100])
def test_parts_of_nodes_are_real_parts(count: int) -> None:
    """Neither none of them nor all; nothing of one node, or of none."""
    parts = list(_subsets(count))
    assert all(part < set(range(count)) and part for part in parts)
    assert (count > 1) == bool(parts)
    assert {frozenset(part) for part in parts if len(part) == 1} >= (
        {frozenset([i]) for i in range(count)} if 1 < count <= 16 else set()
    )


def test_only_vectors_of_integers_hold_sizes() -> None:
    """Numbers of another type or in matrices that happen to equal a shrunk size stay."""
    arrays = {
        "s": np.array([-1, 6]),
        "m": np.array([[6, 1], [2, 6]]),
        "f": np.array([6, 1, 6], np.float32),
        "w": np.arange(36, dtype=np.float32).reshape(6, 6),
    }
    text = """g (float[2,6] x) => (float[2,6] y, float[2,6] z, int64[2,2] n, float[3] q) {
        y = Reshape (x, s) z = MatMul (x, w) n = Neg (m) q = Neg (f) }"""
    made = _resized(model_of(text, arrays), 6, 2)
    found = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert found["s"].tolist() == [-1, 2] and found["w"].shape == (2, 2)
    np.testing.assert_array_equal(found["m"], arrays["m"])
    np.testing.assert_array_equal(found["f"], arrays["f"])
