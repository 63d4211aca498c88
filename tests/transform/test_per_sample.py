"""Gradients of each sample: those of the model at a batch of 1, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.transform.per_sample import map_samples, of_size, samples_of
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse

MLP = """g (float[N,3] x, float[N,2] t) => (float loss, float[N,2] y) <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}, float[2] b = {0.1, 0.2}> {
  p = MatMul (x, w)  q = Add (p, b)  y = Tanh (q)  e = Sub (y, t)  s = Mul (e, e)  loss = ReduceMean <keepdims = 0> (s) }"""
CNN = """g (float[N,2,5,5] x, int64[N] t) => (float loss) <float[2,2,3,3] w = {W}> {
  c = Conv <strides = [2, 2]> (x, w)  r = Relu (c)  m = GlobalAveragePool (r)  f = Flatten (m)  z = Abs (t)  k = Constant <value_int = 2> ()
  i = Mod (z, k)  loss = SoftmaxCrossEntropyLoss (f, i) }"""
# the samples are on the second axis of the sequence
RNN = """g (float[5,batch,2] x) => (float[1,batch,3] h, float l) <float[1,3,2] w = {1,2,3,-1,-2,0.5}, float[1,3,3] r = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9}> {
  , h = RNN <hidden_size = 3> (x, w, r)  q = Mul (h, h)  l = ReduceSum <keepdims = 0> (q) }"""


def weights(text: str) -> onnx.ModelProto:
    numbers = np.linspace(-0.5, 0.5, 36).round(3)
    return parse(text.replace("{W}", "{" + ", ".join(map(str, numbers)) + "}"))


def judged(
    model: onnx.ModelProto, axes: dict[str, int], wrt: list[str], target: str, **more: Any
) -> onnx.ModelProto:
    """The gradients of three samples, which are those of each sample alone."""
    made = onnxgrad.gradient(model, wrt, target, per_sample=True, **more)
    onnx.checker.check_model(made, full_check=True)
    dims = {"N": 1, "batch": 1}
    alone = onnxgrad.gradient(model, wrt, target, **more)
    symbols = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim]
    rows = [
        feeds_for(alone, seed=seed, dims={n: 1 for n in dims if n in symbols}) for seed in range(3)
    ]
    rows = [{n: v if n in axes else rows[0][n] for n, v in row.items()} for row in rows]
    feeds = {
        n: np.concatenate([r[n] for r in rows], axes[n]) if n in axes else v
        for n, v in rows[0].items()
    }
    found = run(made, feeds)
    for name, values in run(alone, rows[0]).items():
        each = [run(alone, row)[name] for row in rows]
        axis = axes.get(name.removesuffix("_grad"))
        expected = np.stack(each) if axis is None else np.concatenate(each, axis)
        assert values.dtype == found[name].dtype
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    return made


def test_inputs_and_weights() -> None:
    made = judged(parse(MLP), {"x": 0, "t": 0, "y": 0}, ["x", "w", "b", "y"], "loss")
    types = {v.name: str(v.type) for v in load_own(made).main.outputs}
    assert types == {
        "loss": "f32[N]", "y": "f32[N,2]", "x_grad": "f32[N,3]", "w_grad": "f32[N,3,2]", "b_grad": "f32[N,2]", "y_grad": "f32[N,2]",
    }  # fmt: skip


def test_adjoints_as_inputs_have_samples() -> None:
    judged(parse(MLP), {"x": 0, "t": 0, "y": 0}, ["w"], "y", adjoint="input")


def test_a_batch_on_another_axis() -> None:
    judged(parse(RNN), {"x": 1, "h": 1}, ["x", "w"], "l")


def test_a_batch_of_one_becomes_any() -> None:
    judged(parse(MLP.replace("[N,", "[1,")), {"x": 0, "t": 0, "y": 0}, ["w"], "loss")


@pytest.mark.parametrize(
    "text",
    [
        MLP,
        """g (float[N,2,3] x, int64[N] t) => (float loss) <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> {
          f = Reshape (x, [N2,3])  p = MatMul (f, w)  a = Reshape (p, [N,4])  m = ReduceMean <axes = [0], keepdims = 1> (a)
          d = Mul (a, m)  z = Mul (t, t)  k = Constant <value_int = 4> ()  i = Mod (z, k)  loss = SoftmaxCrossEntropyLoss (d, i) }""",
    ],
)
def test_a_fixed_batch_has_the_gradients_of_any(text: str) -> None:
    """Reshapes count the rows; the mean over the batch, also in the middle, is that of one sample."""
    parts = text.replace("Reshape (x, [N2,3])", "Reshape (x, s)").replace(
        "Reshape (p, [N,4])", "Reshape (p, r)"
    )
    sizes = "s = Constant <value_ints = [{}, 3]> ()  r = Constant <value_ints = [{}, 4]> ()  f = "
    fixed, opened = (
        onnxgrad.gradient(
            parse(parts.replace("f = ", sizes.format(*numbers)).replace("[N,", f"[{n},").replace("[N]", f"[{n}]"), opset=17),
            "w", "loss", per_sample=True,
        )
        for n, numbers in (("4", (8, 4)), ("N", (-1, -1)))
    )  # fmt: skip
    feeds = feeds_for(opened, seed=0, dims={"N": 3})
    for name, value in run(opened, feeds).items():
        np.testing.assert_allclose(run(fixed, feeds)[name], value, rtol=1e-6, err_msg=name)


W = "<float[3,2] W = {0.5,-0.2, 0.3,0.7, -0.6,0.1}>"


@pytest.mark.parametrize(
    "text",
    [
        # a weight that a transpose of a constant would hide
        f"g (float[4,3] x) => (float[4,3] y) {W} {{ t = Transpose (W) p = MatMul (x, W) q = MatMul (p, t) y = Tanh (q) }}",
        # a lookup of weights by computed indices
        f"g (float[4,3] x) => (float[4,2] y) {W} {{ i = ArgMax <axis = 1> (x) y = GatherND (W, i) }}",
        # zeros of the batch's size
        f"""g (float[4,3] x) => (float[4,2] y) {W} {{ n = Constant <value_ints = [4, 2, 2]> () z = ConstantOfShape (n)
          p = MatMul (x, W) a = Einsum <equation = "bi,bij->bj"> (p, z) c = Add (p, a) y = Sin (c) }}""",
    ],
)
def test_a_fixed_batch_keeps_its_weights(text: str) -> None:
    model = parse(text)
    made = onnxgrad.gradient(model, "W", "y", adjoint="input", per_sample=True)
    found = feeds_for(made, seed=0, dims={"batch": 4})
    each = run(made, found)["W_grad"]
    whole = onnxgrad.gradient(model, "W", "y", adjoint="input")
    for i in range(4):
        seed = np.zeros_like(found["y_grad"])
        seed[i] = found["y_grad"][i]
        alone = run(whole, {"x": found["x"], "y_grad": seed})["W_grad"]
        np.testing.assert_allclose(each[i], alone, rtol=1e-5, atol=1e-6)


def test_a_derivative_of_a_fixed_batch_names_the_order_that_works() -> None:
    model = parse(f"g (float[4,3] x) => (float[4,2] y) {W} {{ p = MatMul (x, W) y = Tanh (p) }}")
    product = onnxgrad.hessian_vector_product(model, "x", "y[0]")
    with pytest.raises(InputError, match="open the batch of the model first, then form its deriv"):
        onnxgrad.open_batch(product, ["x", "x_tangent"], verify=False)


def test_convolutions_run_by_rule() -> None:
    judged(weights(CNN), {"x": 0, "t": 0}, ["x", "w"], "loss")
    program = load_own(weights(CNN))
    samples = samples_of(program)
    gradient = onnxgrad.gradient(of_size(program, samples), "w", "loss")
    assert not map_samples(load_own(gradient), samples, {}).scanned


@pytest.mark.parametrize("axes", ["0, 2, 3", "3, 0, -2", "0, 1", "0", "2, 3", "0, 1, 2, 3"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_over_the_batch_and_other_axes(axes: str, keepdims: int) -> None:
    """As in the gradient of a bias of images: no axis of size 1 is summed beside the others, which
    has ten times the error in onnxruntime.
    """
    model = parse(f"""g (float[N,2,4,3] x) => (float loss) <int64[{axes.count(",") + 1}] a = {{{axes}}}> {{
        e = Exp (x) s = ReduceSum <keepdims = {keepdims}> (e, a) t = Tanh (s) loss = ReduceSum <keepdims = 0> (t) }}""")
    made = judged(model, {"x": 0}, ["x"], "loss")
    if axes == "0, 2, 3" and not keepdims:
        (first,) = (
            n for n in made.graph.node if n.op_type == "ReduceSum" and n.output[0] != "loss"
        )
        assert first.input[0] == "e"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MLP.replace("[N,", "[4,", 1).replace("[N,", "[5,"), "the inputs share no batch"),
        (RNN.replace("batch", "4"), r"first axes of size 5: RNN 'h': .*open-batch MODEL --inputs"),
        (MLP.replace("float[N,2] t", "float[batch,2] t"), "N and batch may be the batch"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        onnxgrad.gradient(parse(text), "w", "loss" if "loss" in text else "l", per_sample=True)


def test_the_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = f"{tmp_path}/m.onnx", f"{tmp_path}/o.onnx"
    onnx.save(parse(MLP), model)
    arguments = ["grad", model, "--wrt", "w", "--target", "loss", "-o", out]
    assert main([*arguments, "--per-sample", "--dim", "N=1"]) == 0
    printed = capsys.readouterr().out
    assert "f32[N,3,2]" in printed and "independence" in printed
    onnx.save(parse(MLP.replace("[N,", "[4,")), model)
    assert main([*arguments, "--per-sample"]) == 0
    assert "axis 0 of x, axis 0 of t; the batch of 4 becomes dynamic" in capsys.readouterr().out
    assert main([*arguments[:-4], "--target", "y", "--jacobian", "--per-sample", "-o", out]) == 0
    assert "f32[batch,2,3,2]" in capsys.readouterr().out
    # the same loss in every sample, whose gradients differ; nothing that differs proves nothing
    zero = MLP.replace("{1,-2, 0.5,0.3, -0.4,0.7}", "{0,0, 0,0, 0,0}").replace(
        "Sub (y, t)", "Sub (y, b)"
    )
    onnx.save(parse(zero), model)
    assert main([*arguments, "--per-sample"]) == 0
    onnx.save(
        parse(zero.replace("MatMul (x, w)", "MatMul (o, w)").replace("p =", "o = Sub (x, x) p =")),
        model,
    )
    assert main([*arguments, "--per-sample"]) == 1
    assert "every row has the same" in capsys.readouterr().err
    assert main([*arguments, "--per-sample", "--jvp"]) == 2
    assert "--per-sample does not apply to --jvp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("result", "body"),
    [
        ("N,2", "e = f.End ()  s = Slice (x, zero, e, one)  y = Mul (s, w)"),
        ("N,2", "s = Mul (x, v)  y = Reshape (s, at_run_time)"),
        ("N,M", "s = Mul (x, v)  y = Compress <axis = 1> (s, mask)"),
    ],
)
def test_a_target_whose_samples_are_known_to_nobody_is_right_or_refused(
    result: str, body: str
) -> None:
    """Each sample would read the adjoint of all: the gradients were wrong, without a word."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
        g (float[N,3] x, int64[2] at_run_time, bool[3] mask) => (float[{result}] y)
        <float[2] w = {{2, 3}}, float[3] v = {{1, 2, 3}}, int64[1] zero = {{0}}, int64[1] one = {{1}}>
        {{ {body} }}
        <domain: "f", opset_import: ["" : 20]> End () => (e) {{ e = Constant <value_ints = [2]> () }}""")
    feeds = {
        "x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
        "at_run_time": np.array([-1, 3]),
        "mask": np.array([True, False, True]),
    }
    try:
        found = onnxgrad.gradient(model, "x", "y", per_sample=True)
    except InputError as error:
        assert "target 'y'" in str(error) and "known to be the batch" in str(error)
        return
    y = run(model, feeds)["y"]
    g = np.linspace(1, 2, y.size, dtype=np.float32).reshape(y.shape)
    one = onnxgrad.gradient(model, "x", "y")
    rows = [run(one, {**feeds, "x": feeds["x"][[i]], "y_grad": g[[i]]})["x_grad"] for i in range(2)]
    names = {v.name for v in found.graph.input}
    given = {n: v for n, v in {**feeds, "y_grad": g}.items() if n in names}
    np.testing.assert_allclose(run(found, given)["x_grad"], np.concatenate(rows), rtol=1e-6)


def test_parts_of_a_sequence() -> None:
    """As torch.onnx.export(optimize=False) writes `chunk`: the gradient has a SequenceMap, whose body was not written."""
    model = parse("""g (float[N,4] x) => (float[N,2] y) <float[4,4] w = {1,2,3,4,-1,0,1,2,0.5,1,0,3,2,-2,1,1}, int64 two = {2}> {
      p = MatMul (x, w)  s = SplitToSequence <axis = 1> (p, two)
      i = Constant <value_int = 0> ()  j = Constant <value_int = 1> ()
      a = SequenceAt (s, i)  b = SequenceAt (s, j)  c = Tanh (a)  y = Mul (c, b) }""")
    x, g = (np.linspace(a, 1, n, dtype=np.float32).reshape(3, -1) for a, n in ((-1, 12), (0.3, 6)))
    found = run(onnxgrad.gradient(model, ["x", "w"], "y", per_sample=True), {"x": x, "y_grad": g})
    one = onnxgrad.gradient(model, ["x", "w"], "y")
    for i in range(3):
        wanted = run(one, {"x": x[[i]], "y_grad": g[[i]]})
        np.testing.assert_allclose(found["x_grad"][[i]], wanted["x_grad"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["w_grad"][i], wanted["w_grad"], rtol=1e-5, atol=1e-6)
