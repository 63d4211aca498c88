"""A record of a model that also changes around the passes: the base receives new weights, what the changes added stays."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from onnxgrad.jobs.rebasing.record import PredicateFailed
from tests.helpers import parse
from tests.jobs.rebasing.test_rebase import optimized, with_values

# a network of images: the scale k moves into w2, t is folded
NET = """g (float[1,3,6,6] x) => (float[1,4] y) <float[4,3,3,3] w, float[4] b = {1, 0, 3, 4}, float[4,4] w2,
  float[4] k = {1, 2, 3, 4}, float[4] c = {4, 3, 2, 1}> {
  a = Conv (x, w, b)  r = Relu (a)  f = Flatten (r)  m = GlobalAveragePool (r)  p = Flatten (m)
  t = Transpose (w2)  h = MatMul (p, t)  u = Relu (h)  s = Mul (u, k)  y = Add (s, c) }"""
HEAD = """g (float[N,4] y) => (float[N,2] z) <float[4,2] w, float[2] k = {2, 4}, float[2] c = {0.5, 1}> {
  h = MatMul (y, w)  r = Relu (h)  s = Mul (r, k)  z = Add (s, c) }"""
STEPS = "'image,resize{size=[6,6]},to-float,normalize{mean=[0.5,0.4,0.3],std=[0.2,0.3,0.1]}'"
BEFORE, AFTER = (
    f"preprocess = {{ before = {STEPS} }}",
    "preprocess = { after = 'softmax,top-k{k=2}' }",
)
JOIN = "join = { model = 'head.onnx' }\n"


def filled(text: str, seed: int) -> ModelProto:
    """The model with drawn values for the weights that the text declares without values."""
    model, rng = parse(text), np.random.default_rng(seed)
    for info in model.graph.value_info:
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
        array = rng.normal(size=sizes).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))
    del model.graph.value_info[:]
    return with_values(model, {t.name: numpy_helper.to_array(t) for t in model.graph.initializer})


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    """Writes a recipe beside the models that it names."""
    onnx.save(filled(HEAD, 9), tmp_path / "head.onnx")
    np.save(tmp_path / "b.npy", np.full(4, 7, np.float32))

    def write(text: str) -> Path:
        (tmp_path / "r.toml").write_text(text)
        return tmp_path / "r.toml"

    return write


def check(text: str, recipe: Any, **new: Any) -> tuple[Any, ModelProto]:
    """The result of `rebase` is that of optimising anew, and the record changes nothing."""
    first, second = filled(NET, 1), with_values(filled(NET, 2), new)
    path = recipe(text)
    done = optimized(first, recipe=path)
    assert done.model == onnxgrad.optimize(first, recipe=path, verify=False)
    found = onnxgrad.rebase(done.model, second, record=done.record)
    assert found == onnxgrad.optimize(second, recipe=path, verify=False) != done.model
    return done, found


@pytest.mark.parametrize(
    "text",
    [
        f"[before]\n{BEFORE}",
        f"[after]\n{BEFORE}",
        f"[before]\n{BEFORE}\n[after]\n{AFTER}",
        f"[before]\n{AFTER}\n[after]\n{BEFORE}",
        JOIN,
        f"{JOIN}[before]\n{BEFORE}\n[after]\nrename = {{ z = 'q' }}",
        f"{JOIN}float16 = true\n[before]\nrename = {{ z = 'q' }}\n[after]\n{BEFORE}",
        f"join = {{ model = 'head.onnx', prefix = 'w_', keep_output = 'y' }}\n[after]\n{BEFORE}",
        "[before]\nopen_batch = {}\n[after]\nrename = { y = 'z' }",
        f"[after]\nopen_batch = {{}}\n{BEFORE}",
        "[before]\nloss = 'cross_entropy'",
        "[after]\nadd_output = 'r'\nrename_node = { '*' = 'n_*' }",
        "[before]\nfree = 'c'\n[after]\nbind = { c = [5, 6, 7, 8] }",
    ],
)
def test_changes_around_the_passes(text: str, recipe: Any) -> None:
    """In any order, with the whole proof, to the last byte."""
    check(text, recipe, k=[0.5, 3, 2, 1], b=[3, -2, 0, 1])


@pytest.mark.parametrize("table", ["before", "after"])
def test_what_a_change_sets_stays(table: str, recipe: Any) -> None:
    done, found = check(f"[{table}]\nset = {{ b = 'b.npy' }}", recipe, b=[9, 9, 9, 9])
    (b,) = (t for t in found.graph.initializer if t.name == "b")
    assert numpy_helper.to_array(b).tolist() == [7, 7, 7, 7] and "b" not in done.record.made


def test_the_weights_of_the_other_model_stay(recipe: Any, tmp_path: Path) -> None:
    """Those of the file that the record was made with; a fact about both models is checked."""
    done, _ = check(JOIN, recipe)
    assert done.record.weights == {"b", "k", "c", "w", "w2"}
    for name, array in (("c", [4, 3, 2, 1]), ("z", [8, 8, 8, 8])):
        head = HEAD.replace("float[2] k", "float[4] same = {4, 3, 2, 1}, float[2] k").replace(
            "(y, w)", "(v, w)"
        )
        onnx.save(filled(head.replace("{\n", "{ v = Mul (y, same) "), 9), tmp_path / "head.onnx")
        twice = optimized(filled(NET, 1), recipe=recipe(JOIN))
        new = with_values(filled(NET, 2), {"c": array})
        if name == "z":
            with pytest.raises(PredicateFailed, match=r"equal_initializers.* at .*c"):
                onnxgrad.rebase(twice.model, new, record=twice.record)
        else:
            onnxgrad.rebase(twice.model, new, record=twice.record)


def test_refused_by_name(recipe: Any) -> None:
    """A value that only the result of the passes has, which the proof of `rebase` cannot compare."""
    with pytest.raises(
        InputError, match=r"rebasable.*after.*s_scaled: the main.*on the result of `rebase`"
    ):
        optimized(filled(NET, 1), recipe=recipe("[after]\nadd_output = 's_scaled'"))


TOPS = (
    "",
    JOIN,
    "float16 = true\n",
    f"{JOIN}float16 = {{ io = true }}\n",
    "merge = 'always'\n",
    "lift = 'w2'\n",
)
TABLES = (
    BEFORE, AFTER, "rename = { y = 'out' }", "add_output = 'r'", "set = { b = 'b.npy' }", "free = 'c'",
    "open_batch = {}", "rename_dim = { 'N' = 'M' }", "loss = 'mse'",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_recipes(seed: int, recipe: Any) -> None:
    """Any changes that a recipe accepts together: to the last byte, or the change is refused by name."""
    rng, equal = Random(seed), 0
    for _ in range(25):
        tables = [
            f"[{when}]\n{rng.choice(TABLES)}\n"
            for when in ("before", "after")
            if rng.random() < 0.7
        ]
        path = recipe(rng.choice(TOPS) + "".join(tables))
        first, second = filled(NET, rng.randrange(99)), filled(NET, rng.randrange(99))
        try:
            plain, anew = (onnxgrad.optimize(m, recipe=path, verify=False) for m in (first, second))
        except (InputError, NotProved):
            continue
        try:
            done = optimized(first, recipe=path, verify=False)
        except InputError as error:
            assert "on the result of `rebase`" in str(error), path.read_text()
            continue
        assert done.model == plain, path.read_text()
        found = onnxgrad.rebase(done.model, second, record=done.record, verify=False)
        assert found == anew, path.read_text()
        equal += 1
    assert equal >= 8


TABLE = """g (float[1,5] x) => (float[5,2] y) <int64[2] s = {5, 1}, float[5] p = {0, 1, 2, 3, 4}, float[2] w = {2, 3}> {
  a = Add (x, p)  r = Reshape (a, s)  y = Mul (r, w) }"""


def test_numbers_by_which_sizes_were_opened(recipe: Any) -> None:
    """They must stay: the result computes them for each size."""
    path = recipe("[before]\nopen_batch = { open = { n = 'x.1' }, extend = { p = 'ramp' } }")
    model = filled(TABLE, 0)
    done = optimized(model, recipe=path)
    new = with_values(model, {"w": [5, 6]})
    assert onnxgrad.rebase(done.model, new, record=done.record) == onnxgrad.optimize(
        new, recipe=path
    )
    other = with_values(new, {"p": np.arange(5) * 2})
    with pytest.raises(InputError, match="'p' has other values: it decides sizes"):
        onnxgrad.rebase(done.model, other, record=done.record)
