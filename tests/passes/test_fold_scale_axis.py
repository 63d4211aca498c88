"""SPEC, added after a second reading, S4: FoldScaleAxis is one name, and moves what is known only at run time."""

from __future__ import annotations

import pytest

from onnxgrad.verify.running.session import run
from tests.helpers import unindented
from tests.passes.test_backward_fold_scale_axis import BEHIND
from tests.passes.test_forward_fold_scale_axis import IN_FRONT
from tests.rewriting import NUMPY, Done, apply, assert_close, model_of, weights

RUNTIME = "fold-scale-axis{runtime=true},remove-unused"


def test_backward_forward_and_constants() -> None:
    text = "g (float[2,3] x) => (float[2,5] y) { a = Mul(x, s)  b = MatMul(a, w)  y = Mul(b, t) }"
    done = apply(
        model_of(text, weights({"s": (3,), "w": (3, 5), "t": (5,)})),
        "fold-scale-axis,remove-unused",
    )
    assert done.ops == ["MatMul"]
    done.prove()


def at_run_time(
    text: str, sizes: dict[str, tuple[int, ...]], s: tuple[int, ...], passes: str = RUNTIME
) -> Done:
    """`text`, whose scale s is an input too, after the pass, with the same results."""
    given = f"float[{','.join(map(str, s))}] s" if s else "float s"
    done = apply(model_of(text.replace("g (", f"g ({given}, ", 1), weights(sizes)), passes)
    done.prove()
    return done


def nothing_behind(done: Done, product: str) -> bool:
    """The result is that of the product."""
    return [n.op_type for n in done.after.graph.node if "y" in n.output] == [product]


@pytest.mark.parametrize(("head", "x", "y", "w", "s"), [case for case in BEHIND if case[1] != "3"])
def test_every_product_takes_a_scale_behind_it(
    head: str, x: str, y: str, w: tuple[int, ...], s: tuple[int, ...]
) -> None:
    text = f"g (float[{x}] x) => (float[{y}] y) {{ c = {head}  y = Mul(c, s) }}"
    done = at_run_time(text, {"w": w, **({"b": (4,)} if ", b)" in head else {})}, s)
    assert nothing_behind(done, head.split("(")[0].split(" ")[0]), done.declined


@pytest.mark.parametrize(
    ("tail", "x", "y", "w", "s"), [case for case in IN_FRONT if case[1] != "3"]
)
def test_every_product_takes_a_scale_in_front_of_it(
    tail: str, x: str, y: str, w: tuple[int, ...], s: tuple[int, ...]
) -> None:
    text = f"g (float[{x}] x) => (float[{y}] y) {{ m = Mul(x, s)  y = {tail} }}"
    bias: dict[str, tuple[int, ...]] = (
        {"b8": (8,)} if "b8" in tail else {"b": (6,)} if ", b)" in tail else {}
    )
    done = at_run_time(text, {"w": w, **bias}, s)
    (product,) = [n for n in done.after.graph.node if "y" in n.output]
    assert "x" in product.input and "Mul" in done.counts, done.declined


def test_weight_and_bias_are_scaled_in_every_run() -> None:
    text = "g (float[1,1,10,10] x) => (float[1,2,8,8] y) { c = Conv(x, w, b)  y = Mul(c, s) }"
    done = at_run_time(text, {"w": (2, 1, 3, 3), "b": (2,)}, (2, 1, 1))
    assert done.text == unindented("""
        g(s: f32[2,1,1], x: f32[1,1,10,10], w: f32[2,1,3,3] const, b: f32[2] const = [-1.90122, -1.28954], const: i64[1] const = [-1], const_2: i64[4] const = [-1, 1, 1, 1]) {
          reshape: f32[2] = Reshape(s, const)
          reshape_2: f32[2,1,1,1] = Reshape(reshape, const_2)
          mul: f32[2,1,3,3] = Mul(w, reshape_2)
          mul_2: f32[2] = Mul(b, reshape)
          y: f32[1,2,8,8] = Conv(x, mul, mul_2)
          return y
        }
    """)


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("c = Conv(x, w)  p = Neg(c)  y = Mul(p, s)", ["Conv", "Neg"]),
        ("c = Conv(x, w)  p = Add(c, k)  y = Mul(p, s)", ["Conv", "Add"]),
        ("c = Conv(x, w)  e = Conv(x, v)  p = Add(c, e)  y = Mul(p, s)", ["Conv", "Conv", "Add"]),
        (
            "c = Conv(x, v1)  e = Conv(x, v1)  p = Concat<axis=1>(c, e)  y = Mul(p, s)",
            ["Conv", "Conv", "Concat"],
        ),
    ],
)
def test_what_a_scale_passes(body: str, ops: list[str]) -> None:
    sizes: dict[str, tuple[int, ...]] = {
        "w": (2, 1, 3, 3),
        "v": (2, 1, 3, 3),
        "v1": (1, 1, 3, 3),
        "k": (2, 1, 1),
    }
    done = at_run_time(f"g (float[1,1,8,8] x) => (float[1,2,6,6] y) {{ {body} }}", sizes, (2, 1, 1))
    assert [op for op in done.ops if op in ops] == ops
    assert nothing_behind(done, ops[-1]), done.declined


def test_parts_of_a_split_and_of_a_concat() -> None:
    split = "c = Conv(x, w)  p, q = Split<axis=1, num_outputs=2>(c)  r = Relu(q)  m = Mul(p, s)  y = Add(m, r)"
    done = at_run_time(
        f"g (float[1,1,8,8] x) => (float[1,2,6,6] y) {{ {split} }}", {"w": (4, 1, 3, 3)}, (2, 1, 1)
    )
    assert done.counts["Concat"] == 1, done.declined
    concat = "m = Mul(x, s)  c = Concat<axis=1>(m, z)  y = Conv(c, w)"
    text = f"g (float[1,2,8,8] x, float[1,1,8,8] z) => (float[1,2,6,6] y) {{ {concat} }}"
    joined = at_run_time(text, {"w": (2, 3, 3, 3)}, (2, 1, 1))
    assert joined.counts["Concat"] == 2 and nothing_behind(joined, "Conv")


@pytest.mark.parametrize(
    ("body", "s", "reason"),
    [
        (
            "c = Conv(x, w)  r = Relu(c)  y = Mul(r, s)",
            (2, 1, 1),
            "not positive, so it does not pass Relu",
        ),
        (
            "c = Conv(x, w)  r = Clip(c, zero)  y = Mul(r, s)",
            (2, 1, 1),
            "not positive, so it does not pass Clip",
        ),
        ("c = Conv(x, w)  y = Div(c, s)", (2, 1, 1), "may be zero"),
        ("c = Conv(x, w)  y = Mul(c, s)", (6, 1), "along axis 2 of Conv"),
        ("c = Conv(x, w)  y = Mul(c, s)", (2, 6, 1), ""),
        ("c = Conv(x, w)  y = Mul(c, s)", (), ""),
    ],
)
def test_what_keeps_it_in_place(body: str, s: tuple[int, ...], reason: str) -> None:
    text = f"g (float[1,1,8,8] x) => (float[1,2,6,6] y) <float zero = {{0}}> {{ {body} }}"
    done = at_run_time(text, {"w": (2, 1, 3, 3)}, s, "fold-scale-axis{runtime=true}")
    assert done.trace.rewrites == [] and reason in done.declined


def test_an_addend_in_front_of_a_product_is_not_divided_by_it() -> None:
    text = "g (float[2,3] x) => (float[2,5] y) { m = Mul(x, s)  a = Add(m, k)  y = MatMul(a, w) }"
    done = at_run_time(text, {"w": (3, 5), "k": (3,)}, (3,))
    assert done.trace.rewrites == [] and "lose digits" in done.declined


def test_one_factor_for_all_where_scalars_are_asked_for() -> None:
    text = "g (float[2,3] x) => (float[2,5] y) { c = MatMul(x, w)  y = Mul(s, c) }"
    asked = RUNTIME.replace("}", ",scalars=true}")
    assert nothing_behind(at_run_time(text, {"w": (3, 5)}, (), asked), "MatMul")
    assert nothing_behind(at_run_time(text, {"w": (3, 5)}, (1, 1), asked), "MatMul")


def test_a_scale_computed_from_the_product_itself_stays() -> None:
    text = """g (float[1,2,8,8] x) => (float[1,2,8,8] y)
      { c = Conv(x, w)  p = GlobalAveragePool(c)  s = Sigmoid(p)  y = Mul(c, s) }"""
    done = apply(model_of(text, weights({"w": (2, 2, 1, 1)})), RUNTIME)
    assert done.trace.rewrites == [] and "is read elsewhere" in done.declined
    done.prove()


@pytest.mark.parametrize("opset", [7, 11, 13, 20])
@pytest.mark.parametrize("dtype", ["float16", "float", "double"])
def test_every_opset_and_dtype(opset: int, dtype: str) -> None:
    text = f"""g ({dtype}[8,3] x, {dtype}[1,4] s, {dtype}[3] t) => ({dtype}[8,4] y)
      {{ m = Mul(x, t)  c = MatMul(m, w)  y = Mul(c, s) }}"""
    constants = {name: array.astype(NUMPY[dtype]) for name, array in weights(w=(3, 4)).items()}
    done = apply(model_of(text, constants, opset=opset, ir_version=8), RUNTIME)
    (product,) = [n for n in done.after.graph.node if "y" in n.output]
    assert len(done.trace.rewrites) == 2 and product.op_type == "MatMul" and product.input[0] == "x"
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in done.before.graph.input
    }
    feeds = {name: array.astype(NUMPY[dtype]) for name, array in weights(shapes).items()}
    assert_close("y", run(done.before, feeds)["y"], run(done.after, feeds)["y"])


def test_two_inputs_of_one_size_do_not_hand_a_scale_to_and_fro() -> None:
    text = "g (float[4,2] x, float[2,4] v) => (float[4,4] y) { a = Mul(x, s)  y = MatMul(a, v) }"
    done = apply(model_of(text, weights({"s": (2,)})), "fold-scale-axis")
    assert done.trace.rewrites == [] and "not smaller than the scaled" in done.declined
