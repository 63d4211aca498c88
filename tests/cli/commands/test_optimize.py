from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.passes import rule_passes
from onnxgrad.passes.base import Pass, register
from onnxgrad.rewrite import slips
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules, count, rewrite
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]


def ops(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


def test_one_model(run: Run, branches: Path, tmp_path: Path) -> None:
    before = branches.read_bytes()
    out = tmp_path / "out.onnx"
    done = run("optimize", branches, "-o", out, "--merge", "always")
    assert (done.code, done.err) == (0, "")
    assert sorted(ops(out)) == ["Add", "MatMul", "Split", "Tanh"]
    for word in (
        "MatMul",
        "nodes",
        "parameters",
        "file size",
        "combine_parallel_matmul ×1",
        "equal on cpu",
        "float64",
    ):
        assert word in done.out
    assert branches.read_bytes() == before


def test_same_input_same_bytes(run: Run, branches: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.onnx" for i in range(2)]
    for out in outs:
        assert run("optimize", branches, "-o", out, "--merge", "always", "-q").code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_quiet_prints_nothing(run: Run, branches: Path, tmp_path: Path) -> None:
    done = run("optimize", branches, "-o", tmp_path / "o.onnx", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_dry_run_writes_nothing(run: Run, branches: Path, tmp_path: Path) -> None:
    done = run("optimize", branches, "--dry-run")
    assert done.code == 0 and "no model written" in done.out
    assert [p.name for p in tmp_path.iterdir()] == ["branches.onnx"]


def test_max_rewrites(run: Run, branches: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    assert run("optimize", branches, "-o", out, "--max-rewrites", 0).code == 0
    assert out.read_bytes() == branches.read_bytes()
    assert run("optimize", branches, "-o", out, "--merge", "always", "--max-rewrites", 2).code == 0
    assert ops(out).count("MatMul") == 3


def test_passes_and_their_options(run: Run, branches: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    done = run(
        "optimize",
        branches,
        "-o",
        out,
        "--passes",
        "combine-parallel-matmul{merge=always,min_branches=3}",
    )
    assert (
        done.code == 0 and ops(out).count("MatMul") == 3 and "Identity" in ops(out)
    )  # q reads the Identity
    done = run(
        "optimize",
        branches,
        "-o",
        out,
        "--passes",
        "remove-noops,combine-parallel-matmul{merge=always}",
    )
    assert done.code == 0 and ops(out).count("MatMul") == 1


def test_explain_says_why_not(run: Run, branches: Path) -> None:
    done = run("optimize", branches, "--dry-run", "--merge", "never", "--explain")
    assert done.code == 0 and "combine_parallel_matmul" in done.out and "why not" in done.out


def test_verbose_shows_rules(run: Run, branches: Path) -> None:
    done = run("optimize", branches, "--dry-run", "-v")
    assert done.code == 0 and "tried" in done.out and "identity" in done.out
    assert "branches.onnx: remove-noops" in done.err


def test_no_verify_says_so(run: Run, branches: Path, tmp_path: Path) -> None:
    done = run("optimize", branches, "-o", tmp_path / "o.onnx", "--no-verify")
    assert (
        done.code == 0
        and "not proved" in done.out
        and "equal" not in done.out.replace("merge-equal", "")
    )


def test_json_file_and_stdout(run: Run, branches: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "o.onnx", tmp_path / "r.json"
    assert run("optimize", branches, "-o", out, "--merge", "always", "--json", report).code == 0
    data = json.loads(report.read_text(encoding="utf-8"))
    model = data["models"][0]
    assert data["exit_code"] == 0 and model["output"] == str(out) and model["proof"]["ok"] is True
    assert (
        model["before"]["operators"]["MatMul"] == 3 and model["after"]["operators"]["MatMul"] == 1
    )
    assert model["rules"]["combine_parallel_matmul"]["applied"] == 1
    done = run("optimize", branches, "--dry-run", "--json", "-")
    assert json.loads(done.out)["models"][0]["output"] is None


def test_given_inputs_and_sizes(run: Run, branches: Path, tmp_path: Path) -> None:
    import numpy as np

    values = tmp_path / "x.npy"
    np.save(values, np.ones((5, 4), np.float32))
    report = tmp_path / "r.json"
    assert (
        run("optimize", branches, "--dry-run", "--input", f"x={values}", "--json", report).code == 0
    )
    assert json.loads(report.read_text())["models"][0]["proof"]["cases"] == [
        {"dims": {"N": 5}, "seed": None, "edges": False, "how": "", "place": ""}
    ]
    assert (
        run("optimize", branches, "--dry-run", "--dim", "N=7", "--seed", 3, "--json", report).code
        == 0
    )
    cases = json.loads(report.read_text())["models"][0]["proof"]["cases"]
    assert cases == [
        {"dims": {"N": 7}, "seed": 3, "edges": edges, "how": how, "place": ""}
        for edges, how in (
            (False, ""),
            (True, ""),
            (False, "scale 0.001"),
            (False, "wide values 1"),
            (False, "wide values 2"),
        )
    ]


def test_several_models(run: Run, branches: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    shutil.copy(branches, folder / "a.onnx")
    shutil.copy(branches, folder / "b.onnx")
    done = run("optimize", folder / "*.onnx", "--out-dir", tmp_path / "out")
    assert done.code == 0 and done.err == "" and "a.onnx" in done.out and "b.onnx" in done.out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.onnx", "b.onnx"]
    (folder / "c.onnx").write_bytes(b"")
    again = run("optimize", folder / "*.onnx", "--out-dir", tmp_path / "out2")
    assert (
        again.code == 2
        and len(again.lines) == 1
        and "c.onnx" in again.err
        and "refused" in again.out
    )
    assert sorted(p.name for p in (tmp_path / "out2").iterdir()) == ["a.onnx", "b.onnx"]


def test_models_of_one_name_are_refused(run: Run, branches: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    shutil.copy(branches, tmp_path / "sub" / branches.name)
    done = run(
        "optimize", branches, tmp_path / "sub" / branches.name, "--out-dir", tmp_path / "out"
    )
    assert done.code == 2 and "branches.onnx" in done.err and not (tmp_path / "out").exists()


def test_external_weights(run: Run, branches: Path, tmp_path: Path) -> None:
    model = onnx.load(branches)
    path, out = tmp_path / "ext.onnx", tmp_path / "o.onnx"
    onnx.save(model, path, save_as_external_data=True, location="ext.bin", size_threshold=0)
    assert run("optimize", path, "-o", out).code == 0
    assert not onnx.load(path, load_external_data=False).graph.initializer[0].raw_data
    assert onnx.load(out).graph.initializer[0].raw_data
    refused = run("optimize", path, "-o", tmp_path / "ext.bin")
    assert refused.code == 2 and "reads its weights" in refused.err


x = capture("x")


@rewrite(P.Tanh(x), shrinks=count("Tanh"))
def tanh_is_identity(x):  # type: ignore[no-untyped-def]
    """A lie."""
    return x


class Wrong(Pass):
    """tanh(x) = x, which it is not."""

    name = "wrong"

    def run(self, program: Program, trace: Trace) -> None:
        apply_rules(program.main, [tanh_is_identity], trace)


@pytest.fixture
def wrong() -> None:
    register(Wrong)


@pytest.mark.usefixtures("wrong")
def test_a_wrong_rewrite_is_named_and_nothing_written(
    run: Run, branches: Path, tmp_path: Path
) -> None:
    out, report = tmp_path / "o.onnx", tmp_path / "r.json"
    done = run("optimize", branches, "-o", out, "--passes", "remove-noops,wrong", "--json", report)
    assert done.code == 1 and len(done.lines) == 1
    assert "tanh_is_identity" in done.err and "number 2" in done.err and "pass wrong" in done.err
    assert "different on cpu" in done.out and not out.exists()
    data = json.loads(report.read_text(encoding="utf-8"))["models"][0]
    assert data["exit_code"] == 1 and data["proof"]["ok"] is False and data["output"] is None


@pytest.mark.usefixtures("wrong")
def test_worst_exit_code_of_several(run: Run, branches: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.onnx"
    shutil.copy(branches, other)
    done = run("optimize", branches, other, "--passes", "wrong", "--out-dir", tmp_path / "out")
    assert done.code == 1 and len(done.lines) == 2 and list((tmp_path / "out").iterdir()) == []


def test_the_error_bound_of_legalize_is_in_the_summary(run: Run, tmp_path: Path) -> None:
    def integers(length: int) -> Path:
        path = tmp_path / f"{length}.onnx"
        weight = onnx.numpy_helper.from_array(np.full((length, 2), 255, np.uint8), "w")
        text = f"g (uint8[1,{length}] x) => (int32[1,2] y) {{ y = MatMulInteger(x, w) }}"
        model = parse(text)
        model.graph.initializer.append(weight)
        onnx.save(model, path)
        return path

    def said(length: int) -> str:
        done = run(
            "optimize",
            integers(length),
            "--dry-run",
            "--passes",
            "legalize{to=float}",
            "--json",
            tmp_path / "j",
        )
        assert done.code == 0
        return " ".join(done.out.split())

    assert "not exact" not in said(257)
    assert json.loads((tmp_path / "j").read_text(encoding="utf-8"))["models"][0]["inexact"] == []
    assert (
        "1 rewrite is not exact for every feed; worst: sums may reach 16841475, above 2^24"
        in said(259)
    )
    (found,) = json.loads((tmp_path / "j").read_text(encoding="utf-8"))["models"][0]["inexact"]
    assert found["rule"] == "legalize_MatMulInteger" and 0 < found["error"] < 1000


def test_an_inlining_that_the_opset_forbids_is_explained(run: Run, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]> main (float[3] x) => (float[3] y) { y = local.g(x) }
      <domain: "local", opset_import: ["" : 12]> g (x) => (y) { t = ReduceSum <axes = [0]> (x)  y = Add(x, t) }"""
    onnx.save(parse(text), tmp_path / "m.onnx")
    done = run(
        "optimize",
        tmp_path / "m.onnx",
        "--dry-run",
        "--passes",
        "inline{names=g}",
        "--explain",
        "--no-verify",
    )
    words = "".join(c if c.isalnum() or c in "':," else " " for c in done.out).split()
    assert done.code == 0 and {
        "inline",
        "call",
        "opset",
        "12",
        "20,",
        "ReduceSum",
        "changed",
    } <= set(words)


def test_a_law_of_ours_that_fails_costs_one_rewrite(
    run: Run, branches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 0, a warning, a line of the report, and all the rest of the rewrites, proved."""

    def wrong(x: Var) -> Any:
        return op.MatMul(op.Add(x, 1.0), op.Reshape(x, [3, 5]))

    wrong.__module__ = "onnxgrad.laws.wrong"
    law = rewrite(P.Tanh(capture("x")), shrinks=count("Tanh"))(wrong)
    monkeypatch.setattr(slips, "raising", False)
    monkeypatch.setattr(rule_passes, "NOOPS", [law, *rule_passes.NOOPS])
    out = tmp_path / "out.onnx"
    done = run("optimize", branches, "-o", out, "--merge", "always", "--json", tmp_path / "j.json")
    assert done.code == 0 and sorted(ops(out)) == ["Add", "MatMul", "Split", "Tanh"]
    (warning,) = done.lines
    assert "warning: rewrite rule wrong failed at z: f32[N,3] = Tanh(r)" in warning
    assert "1 rewrite left out because a rule of onnxgrad failed: wrong" in done.out
    (found,) = json.loads((tmp_path / "j.json").read_text())["models"]
    assert found["proof"]["verdict"] == "equal"
    assert [(s["rule"], s["pass"]) for s in found["slips"]] == [("wrong", "remove-noops")]


def test_a_rewrite_that_exact_evaluation_refutes_is_not_written(
    run: Run, branches: Path, tmp_path: Path
) -> None:
    """The law moves each element of a weight by one unit in the last place."""
    plugin, out = tmp_path / "laws.py", tmp_path / "out.onnx"
    plugin.write_text(
        "import numpy as np\n"
        "from onnxgrad import P, capture, op, rewrite\n"
        "@rewrite(P.MatMul(capture('x'), capture('w').const))\n"
        "def nudged(x, w):\n"
        "    '''x w = x w'''\n"
        "    return op.MatMul(x, np.nextafter(w.const, np.float32(np.inf)))\n"
    )
    words = ("optimize", branches, "--passes", "laws", "--plugin", plugin, "-o", out)
    done = run(*words, "--exact", "--html", tmp_path / "page.html")
    assert done.code == 1 and not out.exists()
    (error,) = done.lines
    assert "exact evaluation refutes rewrite 1, nudged (pass laws) at: " in error
    assert "is not the rounding of its exact value; nothing was written" in error
    assert "same algebra" in (tmp_path / "page.html").read_text()
    done = run("optimize", branches, "--dry-run", "--merge", "always", "--exact", "-v")
    assert "same algebra: 1 of 1 rewrite exact" in done.out and "not counted: " in done.out
    assert "exact evaluation" in done.out and "combine_parallel_matmul" in done.out
