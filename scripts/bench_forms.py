"""Times of several forms of parts of a gradient in stock onnxruntime, from which the rules choose.

`python scripts/bench_forms.py [--rounds N] [--write]`: one thread without spinning, forms in turns,
medians of CPU time. A ratio is the median of the ratios of neighbouring runs to the first form. The
work that all forms of a row share (making the operand, returning the result) is included in each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.records import write_record  # noqa: E402  # the script runs from a checkout
from scripts.sessions import session  # noqa: E402

Feeds = Mapping[str, np.ndarray]
RNG = np.random.default_rng(0)


def runner(graph: str, feeds: Feeds) -> Callable[[], float]:
    """Returns a function that runs a graph ten times and returns the CPU seconds of one run."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}')
    opened = session(model)
    given = {i.name: feeds[i.name] for i in opened.get_inputs()}

    def once() -> float:
        begin = time.process_time()
        for _ in range(10):
            opened.run(None, given)
        return (time.process_time() - begin) / 10

    once()
    return once


def row(what: str, forms: Mapping[str, str], feeds: Feeds, rounds: int) -> str:
    """Returns one line of the table: the first form in ms, the others relative to it."""
    runs = {name: runner(graph, feeds) for name, graph in forms.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, once in runs.items():
            times[name].append(once())
    first, *others = times
    cells = [f"{first} {1000 * statistics.median(times[first]):.3f} ms"]
    for name in others:
        ratio = statistics.median(a / b for a, b in zip(times[name], times[first]))
        cells.append(f"{name} {ratio:.2f}")
    return f"| {what} | {' | '.join(cells)} |"


def sums(rounds: int) -> list[str]:
    """A sum over rows: ReduceSum, or a product with ones."""
    lines = []
    for b, s, c in [(4, 64, 256), (4, 64, 1024), (8, 64, 256), (8, 64, 1024), (8, 65, 192)]:
        head = f"g (float[{b},{s},{c}] g, float[1] z) => (float[{c}] y)"
        made = "h = Add (g, z)"
        forms = {
            "ReduceSum": f"{head} <int64[2] a = {{0, 1}}> "
            f"{{ {made} y = ReduceSum <keepdims = 0> (h, a) }}",
            "product with ones": f"{head} <int64[2] s = {{-1, {c}}}, int64[1] n = {{{b * s}}}> "
            f"{{ {made} o = ConstantOfShape <value = float[1] {{1.0}}> (n) "
            "f = Reshape (h, s) y = MatMul (o, f) }",
        }
        feeds = {"g": RNG.standard_normal((b, s, c), np.float32), "z": np.zeros(1, np.float32)}
        lines.append(row(f"sum over ({b}, {s}) of {c}", forms, feeds, rounds))
    return lines


def embeddings(rounds: int) -> list[str]:
    """Rows added at indices that may repeat."""
    lines = []
    for v, r, c in [(65, 512, 256), (200, 512, 256), (500, 512, 256), (2000, 256, 256)]:
        head = f"g (float[{r},{c}] g, int64[{r}] i) => (float[{v},{c}] y)"
        line = ", ".join(map(str, range(c)))
        rows = ", ".join(map(str, range(v)))
        own = f"int64[2] vc = {{{v}, {c}}}, int64[1] one = {{1}}"
        forms = {
            "flat": f"{head} <{own}, int64[1] n = {{{v * c}}}, int64[1] m = {{-1}}, "
            f"int64 w = {{{c}}}, int64[{c}] line = {{{line}}}> "
            "{ z = ConstantOfShape (n) u = Unsqueeze (i, one) k = Mul (u, w) at = Add (k, line) "
            "af = Reshape (at, m) gf = Reshape (g, m) "
            's = ScatterElements <axis = 0, reduction = "add"> (z, af, gf) y = Reshape (s, vc) }',
            "rows": f"{head} <{own}, int64[2] rc = {{{r}, {c}}}> "
            "{ z = ConstantOfShape (vc) u = Unsqueeze (i, one) at = Expand (u, rc) "
            'y = ScatterElements <axis = 0, reduction = "add"> (z, at, g) }',
            "one-hot product": f"{head} <int64[{v},1] all = {{{rows}}}> "
            "{ e = Equal (all, i) h = Cast <to = 1> (e) y = MatMul (h, g) }",
        }
        feeds = {"g": RNG.standard_normal((r, c), np.float32), "i": RNG.integers(0, v, r)}
        lines.append(row(f"{r} rows of {c} into {v}", forms, feeds, rounds))
    return lines


def gelu(rounds: int) -> list[str]:
    """Gelu by tanh, forward and backward."""
    sizes = "4,64,1024"
    head = f"g (float[{sizes}] x, float[{sizes}] g) => (float[{sizes}] y, float[{sizes}] d)"
    numbers = (
        "<float half = {0.5}, float three = {3.0}, float two = {2.0}, float c = {0.044715}, "
        "float k = {0.7978845608}, float one = {1.0}, float c3 = {0.134145}, "
        "float k2 = {1.5957691216}>"
    )
    forward = (
        "u = Mul (x, half) p = Pow (x, three) q = Mul (p, c) a = Add (x, q) w = Mul (a, k) "
        "t = Tanh (w) h = Add (t, one) y = Mul (u, h)"
    )
    forms = {
        "rule by rule": f"{head} {numbers} {{ {forward} p2 = Pow (x, two) r = Sub (one, t) "
        "m = Mul (y, r) mk = Mul (m, k) mp = Mul (mk, p2) mc = Mul (mp, c3) hh = Mul (h, half) "
        "s = Sum (mk, mc, hh) d = Mul (g, s) }",
        "closed": f"{head} {numbers} {{ {forward} r = Sub (one, t) q2 = Mul (q, k2) "
        "b = Add (w, q2) rb = Mul (r, b) e = Add (rb, one) eh = Mul (h, e) es = Mul (eh, half) "
        "d = Mul (g, es) }",
    }
    shape = tuple(int(n) for n in sizes.split(","))
    feeds = {n: RNG.standard_normal(shape, np.float32) for n in "xg"}
    return [row(f"Gelu by tanh of ({sizes})", forms, feeds, rounds)]


def layer_norms(rounds: int) -> list[str]:
    """LayerNormalization, forward, and backward by all operands."""
    lines = []
    for b, s, c in [(4, 64, 256), (8, 64, 256), (8, 65, 192), (2, 128, 768)]:
        x = f"float[{b},{s},{c}]"
        head = (
            f"g ({x} x, {x} g, float[{c}] w, float[{c}] b) => "
            f"({x} y, {x} d, float[{c}] dw, float[{c}] db)"
        )
        own = (
            f"<int64[1] l = {{-1}}, int64[2] s = {{-1, {c}}}, int64[1] n = {{{b * s}}}, "
            f"float inv = {{{1 / c}}}, int64[2] col = {{{c}, 1}}>"
        )
        forward = (
            "y, mean, r = LayerNormalization (x, w, b) g2 = Reshape (g, s) "
            "o = ConstantOfShape <value = float[1] {1.0}> (n) db = MatMul (o, g2) "
            "xc = Sub (x, mean) h = Mul (g, w)"
        )
        means = "m = ReduceMean (hx, l) m0 = ReduceMean (h, l)"
        end = "s1 = Sub (h, m0) s2 = Sub (s1, al) d = Mul (s2, r)"
        forms = {
            "normalized": f"{head} {own} {{ {forward} hat = Mul (xc, r) hx = Mul (h, hat) {means} "
            f"al = Mul (hat, m) {end} gh = Mul (g, hat) gr = Reshape (gh, s) "
            "dw = MatMul (o, gr) }",
            "centred": f"{head} {own} {{ {forward} hx = Mul (h, xc) {means} rr = Mul (r, r) "
            f"mr = Mul (m, rr) al = Mul (xc, mr) {end} gx = Mul (g, xc) gr = Reshape (gx, s) "
            "rv = Reshape (r, l) dw = MatMul (rv, gr) }",
            "centred, products": f"{head} {own} {{ {forward} gx = Mul (g, xc) wi = Mul (w, inv) "
            "wc = Reshape (wi, col) m = MatMul (gx, wc) m0 = MatMul (g, wc) rr = Mul (r, r) "
            f"mr = Mul (m, rr) al = Mul (xc, mr) {end} gr = Reshape (gx, s) "
            "rv = Reshape (r, l) dw = MatMul (rv, gr) }",
        }
        feeds = {n: RNG.standard_normal((b, s, c), np.float32) for n in "xg"}
        feeds |= {n: RNG.standard_normal(c, np.float32) for n in "wb"}
        lines.append(row(f"LayerNormalization of ({b}, {s}, {c})", forms, feeds, rounds))
    return lines


def products(rounds: int) -> list[str]:
    """A weight's gradient: Gemm with transA, or a product with a transposed operand."""
    lines = []
    for b, s, k, n in [
        (8, 64, 256, 1024),
        (8, 64, 1024, 256),
        (8, 65, 192, 768),
        (4, 64, 256, 256),
    ]:
        head = f"g (float[{b},{s},{k}] x, float[{b},{s},{n}] g) => (float[{k},{n}] y)"
        own = f"int64[2] flat = {{-1, {n}}}"
        forms = {
            "transA": f"{head} <{own}, int64[2] rows = {{-1, {k}}}> "
            "{ a = Reshape (x, rows) c = Reshape (g, flat) y = Gemm <transA = 1> (a, c) }",
            "transposed": f"{head} <{own}, int64[2] turned = {{{k}, -1}}> "
            "{ t = Transpose <perm = [2, 0, 1]> (x) a = Reshape (t, turned) "
            "c = Reshape (g, flat) y = MatMul (a, c) }",
        }
        feeds = {"x": (b, s, k), "g": (b, s, n)}
        arrays = {v: RNG.standard_normal(shape, np.float32) for v, shape in feeds.items()}
        lines.append(row(f"({b * s}, {k})' ({b * s}, {n})", forms, arrays, rounds))
    return lines


def masks(rounds: int) -> list[str]:
    """The gradient of Relu. The product makes NaN of an adjoint that is infinite or NaN where the
    mask is 0, so it is no choice. PRelu selects without it, but by a branch as Where does.
    """
    lines = []
    for sizes in ("8,64,32,32", "8,64,16,16", "64,512"):
        head = f"g (float[{sizes}] y, float[{sizes}] g) => (float[{sizes}] d)"
        own = "<float zero = {0.0}>"
        forms = {
            "Where": f"{head} {own} {{ c = Greater (y, zero) d = Where (c, g, zero) }}",
            "product": f"{head} {own} {{ c = Greater (y, zero) m = Cast <to = 1> (c) "
            "d = Mul (m, g) }",
            "PRelu": f"{head} {own} {{ c = Greater (y, zero) n = Not (c) m = Cast <to = 1> (c) "
            "o = Cast <to = 1> (n) s = Sub (o, m) r = PRelu (s, g) d = Sub (o, r) }",
        }
        shape = tuple(int(n) for n in sizes.split(","))
        y, g = (RNG.standard_normal(shape, np.float32) for _ in range(2))
        lines.append(row(f"Relu of ({sizes})", forms, {"y": np.maximum(y, 0), "g": g}, rounds))
    return lines


def main() -> None:
    """Prints the tables; with --write, records them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--write", action="store_true", help="record the result in scripts/results")
    arguments = parser.parse_args()
    lines = ["One thread, CPU time, medians; the first form's time, the others over it.", ""]
    for part in (sums, embeddings, gelu, layer_norms, products, masks):
        table = part(arguments.rounds)
        columns = table[0].count(" | ")
        lines += [f"| what{' | ' * columns}|", f"|{'---|' * (columns + 1)}", *table, ""]
    print("\n".join(lines))
    if arguments.write:
        write_record("bench_forms", lines)


if __name__ == "__main__":
    main()
