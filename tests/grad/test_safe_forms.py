"""onnxgrad/grad/safe_forms.py: 0 at the root and in branches not selected, nothing else changed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.cli.app import main
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal
from tests.helpers import parse

X = np.float32([[0, 1, -2, 0], [0, 0, 0, 0], [3, 3, 3, 3]])
NUMBERS = (
    "<float two = {2.0}, float three = {3.0}, float third = {0.33333334}, float half = {0.5}, float odd = {1.5}, "
    "float inverse = {0.6666667}, float tiny = {0.1}, float zero = {0.0}, float below = {-100.0}, int64[1] last = {-1}>"
)


def written(nodes: str, shape: str = "3") -> onnx.ModelProto:
    return parse(f"g (float[3,4] x) => (float[{shape}] y) {NUMBERS} {{ {nodes} }}")


def derivatives(model: onnx.ModelProto, **options: Any) -> np.ndarray:
    """With an adjoint of ones."""
    graph = gradient(model, "x", adjoint="input", **options)
    shape = reference(model, {"x": X})["y"].shape
    feeds = {"x": X, "y_grad": np.ones(shape, np.float32)}
    found, exact = run(graph, feeds)["x_grad"], reference(graph, feeds)["x_grad"]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)
    return np.asarray(exact)


def guarded(model: onnx.ModelProto) -> tuple[np.ndarray, np.ndarray]:
    """The derivatives with guards, which are finite, and without, which are equal where they are finite."""
    safe, plain = derivatives(model), derivatives(model, safe=False)
    kept = np.isfinite(plain)
    assert np.isfinite(safe).all() and kept.any() and not kept.all()
    np.testing.assert_array_equal(safe[kept], plain[kept])
    return safe, plain


ABS = "a = Abs (x) "
ROOTS = {
    "std": "m = ReduceMean (x, last) d = Sub (x, m) s = Mul (d, d) v = ReduceMean <keepdims = 0> (s, last) y = Sqrt (v)",
    "std by the number": """m = ReduceMean (x, last) d = Sub (x, m) s = Mul (d, d)
        v = ReduceMean <keepdims = 0> (s, last) n = Shape (x) i = Gather (n, last) c = Cast <to = 1> (i)
        k = Sub (c, two) w = Mul (v, c) u = Div (w, k) y = Sqrt (u)""",
    "std by the number, in the dtype of the operand": """m = ReduceMean (x, last) d = Sub (x, m) s = Mul (d, d)
        v = ReduceMean <keepdims = 0> (s, last) n = Shape (x) i = Gather (n, last) c = CastLike (i, x)
        k = Sub (c, two) w = Mul (v, c) u = Div (w, k) y = Sqrt (u)""",
    "2-norm": "s = Pow (x, two) v = ReduceSum <keepdims = 0> (s, last) y = Pow (v, half)",
    "3-norm": ABS + "s = Pow (a, three) v = ReduceSum <keepdims = 0> (s, last) y = Pow (v, third)",
    "1.5-norm": ABS
    + "s = Pow (a, odd) v = ReduceSum <keepdims = 0> (s, last) y = Pow (v, inverse)",
    "0.5-norm": ABS + "s = Pow (a, half) v = ReduceSum <keepdims = 0> (s, last) y = Pow (v, two)",
    "std, cast": """m = ReduceMean (x, last) d = Sub (x, m) s = Mul (d, d) c = Cast <to = 11> (s)
        v = ReduceMean <keepdims = 0> (c, last) w = Cast <to = 1> (v) y = Sqrt (w)""",
    "bounded by 0": """m = Mul (x, three) s = Mul (m, m) v = ReduceSum <keepdims = 0> (s, last)
        t = ReduceSum <keepdims = 0> (x, last) u = Mul (t, t) d = Sub (v, u) w = Max (d, zero) y = Sqrt (w)""",
    "clipped at 0": """m = Mul (x, three) s = Mul (m, m) v = ReduceSum <keepdims = 0> (s, last)
        t = ReduceSum <keepdims = 0> (x, last) u = Mul (t, t) d = Sub (v, u) w = Clip (d, zero) y = Pow (w, half)""",
    "squares": "v = ReduceSumSquare <keepdims = 0> (x, last) y = Sqrt (v)",
    "two norms": """s = Mul (x, x) v = ReduceSum <keepdims = 0> (s, last) w = Mul (v, two) u = Mul (v, w) y = Sqrt (u)""",
}


def test_a_root_of_squares_times_a_weight() -> None:
    """The value of the weight may be replaced, so nothing reads it."""
    model = written(f"{ROOTS['std'].replace('y = Sqrt (v)', '')} w = Mul (v, three) y = Sqrt (w)")
    graph = gradient(model, ["x", "three"], adjoint="input")
    feeds = {"x": np.ones((3, 4), np.float32), "y_grad": np.ones(3, np.float32)}
    found = run(graph, feeds)
    assert not found["x_grad"].any() and not found["three_grad"].any()


# a row, or all rows, times itself
COLUMN = "c = Unsqueeze (x, last) "
ITSELF = {
    "a row and a column": COLUMN + "r = Transpose <perm = [0, 2, 1]> (c) v = MatMul (r, c)",
    "a column of its own": COLUMN + "one = Constant <value_ints = [1]> () r = Unsqueeze (x, one) v = MatMul (r, c)",
    "a reshaped row": COLUMN + "s = Constant <value_ints = [0, 1, 4]> () r = Reshape (x, s) v = MatMul (r, c)",
    "a contraction": "v = Einsum <equation = \"bi,bi->b\"> (x, x)",
    "a contraction with the transpose": "t = Transpose (x) v = Einsum <equation = \"bi, ib -> b\"> (x, t)",
    "a batch of contractions": "v = Einsum <equation = \"...i,...i->...\"> (x, x)",
    "the product of two views": "s = Constant <value_ints = [3, 4]> () c = Reshape (x, s) m = Mul (x, c) v = ReduceSum (m, last)",
}  # fmt: skip
WHOLE = {
    "a vector": "f = Reshape (x, minus) v = MatMul (f, f)",
    "a Gemm": "f = Flatten <axis = 0> (x) v = Gemm <transB = 1> (f, f)",
    "a Gemm of columns": "f = Flatten <axis = 2> (x) v = Gemm <transA = 1, alpha = 2.0> (f, f)",
    "all elements": 'v = Einsum <equation = "ij,ij->"> (x, x)',
    "a trace": 't = Transpose (x) v = Einsum <equation = "ij,ji->"> (x, t)',
}


@pytest.mark.parametrize("name", [*ITSELF, *WHOLE])
def test_a_root_of_a_product_with_itself_passes_0_where_it_is_0(name: str) -> None:
    if name in ITSELF:
        safe, plain = guarded(written(ITSELF[name] + " y = Sqrt (v)", "N"))
        assert (safe[1] == 0).all() and np.isnan(plain[1]).all()
        return
    text = f"minus = Constant <value_ints = [-1]> () {WHOLE[name]} y = Sqrt (v)"
    graph = gradient(written(text, "N"), "x", adjoint="input")
    shape = reference(written(text, "N"), {"x": X})["y"].shape
    for x in (np.zeros_like(X), X):
        found = run(graph, {"x": x, "y_grad": np.ones(shape, np.float32)})["x_grad"]
        scale = 2**0.5 if "2.0" in text else 1.0
        np.testing.assert_allclose(found, scale * x / (np.linalg.norm(x) or 1.0), rtol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        "t = Transpose (x) v = MatMul (x, t)",  # rows times other rows
        'v = Einsum <equation = "bi,ci->bc"> (x, x)',
        'v = Einsum <equation = "bi,bj->b"> (x, x)',
        "v = Gemm <transB = 1> (x, x)",
        "s = Constant <value_ints = [4, 3]> () c = Reshape (x, s) v = MatMul (x, c)",
        "f = Flatten <axis = 0> (x) t = Transpose (x) u = Flatten <axis = 2> (t) v = MatMul (f, u)",
    ],
)
def test_no_root_of_other_products(nodes: str) -> None:
    on, off = (
        gradient(written(f"{nodes} y = Sqrt (v)", "N"), "x", adjoint="input", safe=safe)
        for safe in (True, False)
    )
    assert on.graph == off.graph


@pytest.mark.parametrize("name", ROOTS)
def test_a_root_of_squares_passes_0_where_it_is_0(name: str) -> None:
    model = written(ROOTS[name])
    safe, plain = guarded(model)
    assert (safe[1] == 0).all() and np.isnan(plain[1]).all()
    check_model(model, {"x": normal(3, 4) + 3}, seeds=(0,))


BRANCHES = {
    "log": "l = Log (x) p = Greater (x, zero) y = Where (p, l, zero)",
    "of the other side": "l = Log (x) p = LessOrEqual (x, zero) y = Where (p, x, l)",
    "root": "l = Sqrt (x) p = Greater (x, zero) y = Where (p, l, x)",
    "sinc": "s = Sin (x) d = Div (s, x) p = Equal (x, zero) y = Where (p, two, d)",
    "x log x": "l = Log (x) m = Mul (x, l) p = Greater (x, zero) y = Where (p, m, zero)",
    "a branch within a branch": """l = Log (x) m = Mul (x, l) n = IsNaN (x) w = Where (n, x, m)
        p = Greater (x, zero) y = Where (p, w, zero)""",
    "powers": "s = Pow (x, half) t = Mul (s, two) p = Greater (x, zero) y = Where (p, t, x)",
    "overflow": "h = Mul (x, below) w = Mul (h, below) e = Exp (w) p = Less (w, two) y = Where (p, e, x)",
    "bounded": "a = Abs (x) l = Log (a) m = Max (l, below) y = Mul (m, m)",
    "clipped": "a = Abs (x) l = Log (a) y = Clip (l, below)",
    "compared": "a = Abs (x) r = Reciprocal (a) i = IsInf (r) y = Where (i, zero, r)",
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_not_selected_passes_nothing(name: str) -> None:
    guarded(written(BRANCHES[name], "3,4"))


UNTOUCHED = {
    "a number is added": "s = Mul (x, x) v = ReduceMean (s, last) w = Add (v, tiny) y = Sqrt (w)",
    "odd powers": "s = Pow (x, three) v = ReduceSum (s, last) y = Pow (v, third)",
    "bounded elsewhere": "v = Max (x, tiny) y = Sqrt (v)",
    "no squares": "s = Abs (x) v = ReduceSum (s, last) y = Sqrt (v)",
    "two readers": "l = Log (x) p = Greater (x, zero) w = Where (p, l, zero) y = Add (w, l)",
    "finite for finite values": "t = Transpose (x) l = MatMul (x, t) e = Sin (l) m = ReduceMin (x, last) p = Greater (m, zero) y = Where (p, e, zero)",
    "a constant divisor": "d = Div (x, two) p = Greater (x, zero) y = Where (p, d, zero)",
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_stays_as_it_is_written(name: str) -> None:
    model = written(UNTOUCHED[name], "3,N")
    on, off = (gradient(model, "x", adjoint="input", safe=safe) for safe in (True, False))
    assert on.graph == off.graph


def test_under_checkpoints_twice_and_in_a_branch() -> None:
    model = written(ROOTS["std"])
    plain = derivatives(model)
    np.testing.assert_array_equal(derivatives(model, checkpoint=["d"]), plain)
    feeds = {"x": X, "y_grad": np.ones(3, np.float32), "x_grad_grad": X}
    twice = gradient(gradient(model, "x", adjoint="input"), "x", "x_grad", adjoint="input")
    assert np.isfinite(reference(twice, feeds)["x_grad_2"]).all()
    nested = ROOTS["2-norm"].replace("y = Pow", "r = Pow")
    text = f"""g (float[3,4] x, bool c) => (float[3] y) {NUMBERS} {{
        y = If (c) <then_branch = t () => (float[3] r) {{ {nested} }}, else_branch = e () => (float[3] q) {{
            q = ReduceSum <keepdims = 0> (x, last) }}> }}"""
    graph = gradient(parse(text), "x", adjoint="input")
    found = run(graph, {"x": X, "c": np.array(True), "y_grad": feeds["y_grad"]})["x_grad"]
    assert np.isfinite(found).all()


def test_the_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(written(ROOTS["std"]), path)
    given = ["grad", str(path), "-o", str(tmp_path / "g.onnx"), "--no-verify"]
    assert main(given) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "0 in place of NaN: the root 'y' (--no-safe: as written)" in said
    assert main([*given, "--no-safe"]) == 0
    assert "NaN" not in capsys.readouterr().out


# ---- against PyTorch, on the files of both exporters ---------------------------------------------

CASES: dict[str, str] = {
    "std": "x.std(dim=-1)",
    "std of all": "(x * 0 + 2).std()",
    "std, biased": "x.std(dim=1, correction=0, keepdim=True)",
    "std_mean": "torch.std_mean(x, dim=-1)[0]",
    "var": "x.var(dim=-1)",
    **{f"norm {p}": f"x.norm(p={p}, dim=-1)" for p in ("1", "1.5", "2", "3", "float('inf')")},
    **{
        f"vector_norm {p}": f"torch.linalg.vector_norm(x, ord={p}, dim=-1)"
        for p in ("0.5", "1", "1.5", "2", "3", "float('inf')")
    },
    "matrix_norm": "torch.linalg.matrix_norm(x * 0)",
    **{f"normalize {p}": f"F.normalize(x, p={p}, dim=-1)" for p in (1, 2, 3)},
    "cosine_similarity": "F.cosine_similarity(x, z, dim=-1)",
    "cosine_similarity, one 0": "F.cosine_similarity(x, x + 1, dim=-1)",
    **{f"cdist {p}": f"torch.cdist(x, z, p={p})" for p in ("1.0", "2.0", "3.0")},
    "cdist of itself": "torch.cdist(x, x)",
    "cdist by products": "torch.cdist(x, z, compute_mode='use_mm_for_euclid_dist')",
    "PairwiseDistance": "torch.nn.PairwiseDistance()(x, z)",
    "PairwiseDistance 0": "torch.nn.PairwiseDistance(eps=0)(x, z)",
    "logsumexp": "torch.logsumexp(x, -1)",
    "softplus": "F.softplus(x * 60)",
    "softplus beta": "F.softplus(x, beta=5.0, threshold=10.0)",
    "logsigmoid": "F.logsigmoid(x * 60)",
    "sqrt of absolutes": "(x.abs() + 1).sqrt()",
    "huber": "F.huber_loss(x, z)",
    "smooth_l1": "F.smooth_l1_loss(x, z)",
    "where, safe": "torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0)",
    "sinc": "torch.sinc(x)",
    "atan2": "torch.atan2(x, z)",
    "elu": "F.elu(x * 60)",
}
# what PyTorch itself gives NaN for: written out, not one function of it
WRITTEN = {
    "sqrt of squares": "(x * x).sum(-1).sqrt()",
    "sqrt of a mean": "(x * x).mean(-1).sqrt()",
    "sqrt of clamp": "torch.sqrt((x @ x.T).clamp(min=0))",
    "where log": "torch.where(x > 0, torch.log(x), 0.0)",
    "where sqrt": "torch.where(x > 0, torch.sqrt(x), 0.0)",
    "where quotient": "torch.where(x != 0, torch.sin(x) / x, 1.0)",
    "where power": "torch.where(x > 0, x**0.5, 0.0)",
}
# TorchScript's exporter writes another function: no absolute values, no epsilon, NaN at the origin, an epsilon for the
# product of two norms in place of one for each
ANOTHER = {
    (name, False)
    for name in ("cdist 1.0", "cdist 3.0", "PairwiseDistance", "atan2", "cosine_similarity, one 0")
}
# the exporter refuses these
REFUSED = {(name, False) for name in ("huber", "smooth_l1", "sinc")} | {
    (f"cdist {p}", True) for p in ("1.0", "2.0", "3.0", "of itself")
}
EXPORTS = [(n, d) for n in (*CASES, *WRITTEN) for d in (False, True) if (n, d) not in REFUSED]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "dynamo"), EXPORTS)
@pytest.mark.filterwarnings("ignore")
def test_as_pytorch_at_0(name: str, dynamo: bool) -> None:
    torch = pytest.importorskip("torch")
    text = (CASES | WRITTEN)[name]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, z: Any) -> Any:
            return eval(text, {"torch": torch, "F": torch.nn.functional, "x": x, "z": z})

    other = X.copy()
    other[0, 0] = 1
    given = tuple(torch.tensor(v, requires_grad=True) for v in (X, other))
    wanted = Module()(*given)
    u = torch.tensor(np.random.default_rng(0).standard_normal(wanted.shape).astype(np.float32))
    expected = torch.autograd.grad(wanted, given, u, allow_unused=True)
    file = io.BytesIO()
    if dynamo:
        program = torch.onnx.export(
            Module(), given, dynamo=True, input_names=["x", "z"], verbose=False
        )
        program.save(file)
    else:
        torch.onnx.export(
            Module(), given, file, dynamo=False, input_names=["x", "z"], opset_version=18
        )
    model = onnx.load_from_string(file.getvalue())
    out = model.graph.output[0].name
    used = {n for n, g in zip("xz", expected) if g is not None}
    names = [v.name for v in model.graph.input if v.name in used]
    inputs = {v.name for v in model.graph.input}
    feeds = {n: v for n, v in zip(("x", "z"), (X, other)) if n in inputs}
    alike = np.allclose(reference(model, feeds)[out], wanted.detach().numpy(), atol=1e-5)
    alike = alike and (name, dynamo) not in ANOTHER
    assert alike or (name, dynamo) in ANOTHER
    graph = gradient(model, names, out, adjoint="input")
    feeds[graph.graph.input[-1].name] = u.numpy()
    checks = run(graph, feeds), reference(graph, feeds)
    for found in checks if alike else ():
        for n in names:
            got, true = found[f"{n}_grad"], expected["xz".index(n)].numpy()
            if name in WRITTEN:
                assert np.isfinite(got).all()
                got, true = got[np.isfinite(true)], true[np.isfinite(true)]
            np.testing.assert_allclose(got, true, atol=2e-5, rtol=1e-4, err_msg=n)
