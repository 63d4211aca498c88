"""Lists of names in options: an exact name wins before a list is split at commas, everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.__main__ import main
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.jobs.declared import Option, options_of
from onnxgrad.jobs.kinds import NamesOrAxes
from onnxgrad.name_lists import fits, names_among, with_commas
from onnxgrad.options import Named
from tests.helpers import parse

F32 = np.float32

KNOWN = ["a,b", "a", "c[0]", "d"]


def test_an_exact_name_wins() -> None:
    assert names_among("a,b", KNOWN, "x") == ("a,b",)
    assert names_among("a,d", KNOWN, "x") == ("a", "d")
    assert names_among(["a,b,d", "d"], KNOWN, "x") == ("a,b", "d", "d")
    assert names_among("n[0,1]*, c[0]", KNOWN, "x") == ("n[0,1]*", "c[0]")
    assert names_among("", KNOWN, "x") == ()
    assert with_commas(["a", "b", "d"], KNOWN) == ("a,b", "d")


def test_a_name_is_no_glob() -> None:
    assert fits("c[0]", "c[0]") and fits("c0", "c[0]") and not fits("c1", "c[0]")


# the options that are lists, but of texts that hold other things than names
OTHERS = {
    "--against": "runtimes, with paths",
    "--metric [OUTPUT:]METRIC=X": "a bound each",
    "--reference": "files",
    "--device": "a rule each",
}
GRAPH = """g (float[{B},4] x1, float[{B},4] x2) => (float[{B},4] y1, float[{B},4] y2, float[{B},4] s) {
    a1 = Neg (w1)  h1 = MatMul (x1, a1)  k1 = Add (h1, b1)  m1 = Add (k1, v1)  n1 = MatMul (m1, q1)
    a2 = Neg (w2)  h2 = MatMul (x2, a2)  k2 = Add (h2, b2)  m2 = Add (k2, v2)  n2 = MatMul (m2, q2)
    r1 = Add (n1, v1)  y1 = Tanh (r1)  r2 = Add (n2, v2)  y2 = Tanh (r2)  s = Add (y1, y2) }"""
CALLS = """<ir_version: 10, opset_import: ["" : 20, "l" : 1]>
g (float[4] x) => (float[4] y) { a = l.f1 (x)  y = l.f2 (a) }
<domain: "l", opset_import: ["" : 20]> f1 (x) => (y) { y = Sigmoid (x) }
<domain: "l", opset_import: ["" : 20]> f2 (x) => (y) { y = Neg (x) }"""
# (command, flag) -> the words beside the flag, and the names of its list; {out} is written
RUNS: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("optimize", "--without"): (
        "optimize m.onnx -o {out}", ["combine-parallel-matmul", "remove-unused"]
    ),
    ("optimize", "--inline"): ("optimize f.onnx --no-verify -o {out}", ["f1", "f2"]),
    ("optimize", "--print-after"): (
        "optimize t.onnx --no-verify -o {out}", ["remove-unused", "fold-constant"]
    ),
    ("ci", "--only"): ("ci --update", ["m1", "m2"]),
    **{
        (command, flag): (f"{command} l.onnx --target s{more}", [f"{kind}1", f"{kind}2"])
        for command, out in (("grad", " -o {out}"), ("check-grad", ""))
        for flag, kind, more in (
            ("--wrt", "w", out), ("--stop", "h", f" --wrt params{out}"), ("--allow-empty", "x", out)
        )
    },
    **{
        (command, flag): (f"{command} {words}", names)
        for command, words in (
            ("train-step", "m.onnx -o {out} --loss mse{output=s}"),
            ("fit", "m.onnx -o {out} --loss mse{output=s} --data data.npz --steps 1"),
        )
        for flag, names in (
            ("--wrt", ["w1", "w2"]),
            ("--stop", ["h1", "h2"]),
            ("--inputs-at", ["h1", "h2"]),
            ("--tie", ["w1=w2", "b1=b2"]),
            ("--untie", ["v1", "v2"]),
            ("--standardize", ["x1=1", "x2"]),
            ("--metric", ["y1", "y2"]),
        )
    },
    **{
        (command, "--allow-empty"): (words, ["y1", "y2"])
        for command, words in (
            ("optimize", "optimize m.onnx -o {out}"),
            ("verify", "verify m.onnx m.onnx"),
            ("convert-opset", "convert-opset m.onnx --to 21 -o {out}"),
            ("float16", "float16 m.onnx -o {out}"),
            ("edit", "edit m.onnx --drop-output s -o {out}"),
            ("join", "join m.onnx t.onnx --map s=t -o {out}"),
            ("preprocess", "preprocess m.onnx --after s=sigmoid -o {out}"),
            ("lift", "lift m.onnx --weights w1 --prepare p.onnx -o {out}"),
            ("lora", "lora m.onnx --targets q1 --rank 1 -o {out}"),
            ("rebase", "rebase r.onnx --weights m.onnx -o {out}"),
        )
    },
    ("float16", "--keep"): ("float16 m.onnx -o {out}", ["h1", "h2"]),
    ("float16", "--convert"): ("float16 m.onnx -o {out}", ["h1", "h2"]),
    ("extract", "--inputs"): ("extract m.onnx --outputs s -o {out}", ["h1", "h2"]),
    ("extract", "--outputs"): ("extract m.onnx -o {out}", ["h1", "h2"]),
    ("open-batch", "--inputs"): ("open-batch b.onnx -o {out}", ["x1", "x2"]),
    ("open-batch", "--follow"): ("open-batch b.onnx --open n=x1.0,x2.0 -o {out}", ["h1", "h2"]),
    ("open-batch", "--allow-same"): ("open-batch b.onnx --batch 2 -o {out}", ["y1", "y2"]),
    ("vmap", "--map"): ("vmap b.onnx -o {out}", ["x1=0", "x2"]),
    ("vmap", "--allow-same"): ("vmap b.onnx -o {out}", ["y1", "y2"]),
    ("edit", "--free"): ("edit m.onnx -o {out}", ["w1", "w2"]),
    ("edit", "--add-output"): ("edit m.onnx -o {out}", ["h1", "h2"]),
    ("edit", "--drop-output"): ("edit m.onnx -o {out}", ["y1", "y2"]),
    ("edit", "--keep-output"): (
        "edit m.onnx --after y1=sigmoid --after y2=softmax -o {out}", ["y1", "y2"]
    ),
    ("join", "--keep-output"): ("join m.onnx t.onnx --map s=t -o {out}", ["y1", "y2"]),
    ("preprocess", "--keep-output"): (
        "preprocess m.onnx --after y1=sigmoid --after y2=softmax -o {out}", ["y1", "y2"]
    ),
    ("lift", "--weights"): ("lift m.onnx --prepare p.onnx -o {out}", ["w1", "w2"]),
    ("lora", "--targets"): ("lora m.onnx --rank 1 -o {out}", ["q1", "q2"]),
    ("metadata", "--unset"): ("metadata m.onnx -o {out}", ["k1", "k2"]),
}  # fmt: skip


def odd(text: str) -> str:
    """A text with a comma in each name that ends in 1, and braces in each that ends in 2."""
    return re.sub(r"\b([a-z])([12])\b", lambda m: m[1] + (",0" if m[2] == "1" else "{1}"), text)


def model(size: str) -> onnx.ModelProto:
    made = parse(GRAPH.replace("{B}", size))
    made.metadata_props.add(key=odd("k1"), value="1")
    made.metadata_props.add(key=odd("k2"), value="2")
    rng = np.random.default_rng(0)
    for kind, shape in (("w", (4, 4)), ("b", (4,)), ("v", (4,)), ("q", (4, 4))):
        array = rng.standard_normal(shape).astype(F32) * (kind != "v")
        made.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, odd(f"{kind}{n}")) for n in "12"
        )
    graph = made.graph
    for v in (*graph.input, *graph.output):
        v.name = odd(v.name)
    for node in graph.node:
        node.input[:], node.output[:] = map(odd, node.input), map(odd, node.output)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models: m (open batch), b (fixed), l (s is a scalar), t (one input), f (two functions)."""
    made = tmp_path_factory.mktemp("lists")
    onnx.save(model("N"), made / "m.onnx")
    onnx.save(model("2"), made / "b.onnx")
    optimised = onnxgrad.optimize(made / "m.onnx", rebasable=True, report=True)
    onnx.save(optimised.model, made / "r.onnx")
    optimised.record.save_beside(made / "r.onnx")
    scalar = model("2")
    scalar.graph.node[-1].output[0] = "sum"
    scalar.graph.node.append(onnx.helper.make_node("ReduceSum", ["sum"], ["s"], keepdims=0))
    scalar.graph.output[2].type.tensor_type.shape.Clear()
    onnx.save(scalar, made / "l.onnx")
    onnx.save(
        parse("g (float[N,4] t) => (float[N,4] u) { a = Identity (t) u = Neg (a) }"),
        made / "t.onnx",
    )
    calls = onnx.parser.parse_model(CALLS)
    for node in calls.graph.node:
        node.op_type = odd(node.op_type)
    for function in calls.functions:
        function.name = odd(function.name)
    onnx.save(calls, made / "f.onnx")
    for name in ("m1", "m2"):
        onnx.save(
            parse("g (float[4] x) => (float[4] y) { y = Neg (x) }"), made / f"{odd(name)}.onnx"
        )
    (made / "onnxgrad.toml").write_text(
        '[ci]\nmodels = ["m,*.onnx", "m{1}.onnx"]\nout = "built/{name}.onnx"\n'
    )
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal((6, 4)).astype(F32) for name in (odd("x1"), odd("x2"), "target")
    }
    np.savez(made / "data.npz", **arrays)
    return made


def lists() -> dict[tuple[str, str], Option]:
    """The options of every command that are lists of names."""
    found = {}
    axes = get_args(NamesOrAxes)[1:]
    for command, declared in COMMANDS.items():
        for o in () if declared.options is None else options_of(declared.options):
            named = any(isinstance(m, Named) or m in axes for m in o.marks)
            if named and o.flag and not {o.flag, f"{o.flag} {o.metavar}"} & {*OTHERS}:
                found[command, o.flag] = o
    return found


def test_every_list_of_names_is_tried() -> None:
    assert lists().keys() == RUNS.keys()


@pytest.mark.parametrize(("command", "flag"), RUNS)
def test_names_with_commas_and_braces(
    command: str, flag: str, folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One list, and the flag for each name, write the same; an unknown name beside them is refused by its name."""
    monkeypatch.chdir(folder)
    text, names = RUNS[command, flag]
    own = [odd(name) for name in names]
    words = [odd(word) for word in text.split()]

    def run(given: list[str], out: str) -> tuple[int, str, str]:
        flags = [part for name in given for part in (flag, name)]
        capsys.readouterr()
        code = main([*(w.replace("{out}", str(tmp_path / out)) for w in words), *flags])
        return code, *capsys.readouterr()

    for given, out in (([",".join(own)], "one"), (own, "each")):
        code, _, error = run(given, out)
        assert code == 0, error
    one, each = ([f.read_bytes() for f in written(tmp_path / out)] for out in ("one", "each"))
    assert one == each and (one or "{out}" not in text)
    code, _, error = run([",".join([own[0], "no_such_name"])], "wrong")
    assert code == 2 and "no_such_name" in error


def written(path: Path) -> list[Path]:
    """The models below a path."""
    return sorted(path.glob("*.onnx")) if path.is_dir() else [path] if path.exists() else []
