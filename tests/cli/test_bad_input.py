"""Bad input of every kind: the right exit code, one line on stderr, no traceback, nothing written or changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest

from tests.cli.conftest import BRANCHES, NO_KERNEL, Result
from tests.helpers import parse

Run = Callable[..., Result]
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 4


def good() -> bytes:
    return parse(BRANCHES).SerializeToString()


def edited(edit: Callable[[onnx.ModelProto], object]) -> bytes:
    model = parse(BRANCHES)
    edit(model)
    return model.SerializeToString()


def external(m: onnx.ModelProto) -> None:
    tensor = m.graph.initializer[0]
    del tensor.float_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="missing.bin")


# what is wrong with the model -> (the file, what the line says)
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "truncated": (good()[:-40], "not an ONNX model"),
    "text": (b"Dear reader, this is no model.\n" * 20, "not an ONNX model"),
    "png": (PNG, "not an ONNX model"),
    "random protobuf": (
        onnx.TensorProto(name="t", dims=[3]).SerializeToString(),
        "not an ONNX model",
    ),
    "no opset": (edited(lambda m: m.ClearField("opset_import")), "imports no operator set"),
    "unknown operator": (
        edited(lambda m: setattr(m.graph.node[0], "op_type", "Frobnicate")),
        "operator Frobnicate",
    ),
    "unknown opset": (
        edited(lambda m: setattr(m.opset_import[0], "version", 9999)),
        "unknown opset 9999",
    ),
    "newer IR version": (edited(lambda m: setattr(m, "ir_version", 99)), "IR version 99"),
    "undefined name": (edited(lambda m: m.graph.node[1].input.__setitem__(0, "ghost")), "'ghost'"),
    "name twice": (
        edited(lambda m: m.graph.node[1].output.__setitem__(0, "q")),
        "'q' is defined twice",
    ),
    "cycle": (edited(lambda m: m.graph.node[0].input.__setitem__(0, "y")), "cycle"),
    "damaged weight": (edited(lambda m: m.graph.initializer[0].float_data.pop()), "a"),
    "external data missing": (edited(external), "missing.bin"),
}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def check(done: Result, code: int, words: str) -> None:
    assert done.code == code, done
    assert len(done.lines) == 1 and done.err.startswith("onnxgrad: ") and done.err.endswith("\n"), (
        done.err
    )
    assert words in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("command", ["optimize", "verify", "inspect"])
@pytest.mark.parametrize("what", FILES)
def test_bad_models(run: Run, tmp_path: Path, what: str, command: str) -> None:
    content, words = FILES[what]
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    before = files_below(tmp_path)
    options = {"optimize": ["-o", tmp_path / "out.onnx"], "verify": [path], "inspect": []}[command]
    if command == "inspect" and what == "external data missing":
        assert run(command, path, *options).code == 0  # nothing reads the weights
    else:
        # what `verify` runs it leaves to onnxruntime to understand, in its own words
        check(run(command, path, *options), 2, words if command == "optimize" else "")
    assert files_below(tmp_path) == before


def test_missing_model(run: Run, tmp_path: Path) -> None:
    for words in (
        ["optimize", "--dry-run"],
        ["inspect"],
        ["diff", tmp_path / "x"],
        ["verify", tmp_path / "x"],
    ):
        check(run(words[0], tmp_path / "no such.onnx", *words[1:]), 2, "no such.onnx: No such file")
    check(run("optimize", tmp_path, "--dry-run"), 2, "Is a directory")
    check(run("optimize", tmp_path / "*.onnx", "--dry-run"), 2, "no file matches")


# options that are wrong, for `optimize MODEL`; {} is a folder with the model -> what the line says
USAGE: dict[str, tuple[list[str], str]] = {
    "nowhere to write": ([], "-o OUT"),
    "folder does not exist": (["-o", "{}/none/out.onnx"], "cannot be written"),
    "folder is a file": (["-o", "{}/model.onnx/out.onnx"], "cannot be written"),
    "output is a folder": (["-o", "{}"], "is a folder"),
    "output is the input": (["-o", "{}/model.onnx"], "same file"),
    "output is a link to the input": (["-o", "{}/link.onnx"], "same file"),
    "out-dir holds the input": (["--out-dir", "{}"], "same file"),
    "out-dir is a file": (["--out-dir", "{}/model.onnx"], "it is a file; name a folder"),
    "two outputs": (["-o", "{}/o.onnx", "--out-dir", "{}/out"], "not allowed with"),
    "unknown preset": (["--dry-run", "--preset", "fast"], "invalid choice: 'fast'"),
    "unknown pass": (["--dry-run", "--passes", "shrink"], "unknown pass 'shrink'"),
    "unknown option of a pass": (
        ["--dry-run", "--passes", "fold-constant{depth=3}"],
        "has no option 'depth'",
    ),
    "bad value of an option": (
        ["--dry-run", "--passes", "fold-constant{max_growth=x}"],
        "max_growth",
    ),
    "unreadable list of passes": (
        ["--dry-run", "--passes", "fold-constant{"],
        "cannot read the list",
    ),
    "empty list of passes": (["--dry-run", "--passes", ""], "empty"),
    "a plugin as a pass": (
        ["--dry-run", "--passes", "rule.py"],
        "`--plugin FILE.py` reads your rules",
    ),
    "--without an unknown pass": (["--dry-run", "--without", "merge-equals"], "'merge-equal'?"),
    "--without any pass": (["--dry-run", "--without", "*"], "no pass is left to run"),
    "--print-after an unknown pass": (["--dry-run", "--print-after", "combine"], "'combine*'?"),
    "--print-after a pass that does not run": (
        ["--dry-run", "--print-after", "outline"],
        "has no such pass",
    ),
    "--print-after into a file": (
        ["--dry-run", "--print-after", "merge-equal={}/model.onnx"],
        "cannot be made",
    ),
    "--print-after into no name": (["--dry-run", "--print-after", "merge-equal="], "is empty"),
    "unknown merge rule": (["--dry-run", "--merge", "sometimes"], "invalid choice"),
    "bad --dim": (["--dry-run", "--dim", "N"], "--dim N"),
    "--dim without a size": (["--dry-run", "--dim", "N="], "--dim N="),
    "--dim of no number": (["--dry-run", "--dim", "N=many"], "--dim N=many"),
    "--dim of nothing known": (["--dry-run", "--dim", "M=3"], "no input has a dimension 'M'"),
    "--input of no file": (["--dry-run", "--input", "x={}/none.npy"], "none.npy"),
    "--input of no input": (["--dry-run", "--input", "w={}/none.npy"], "no input 'w'"),
    "--input of a wrong kind": (["--dry-run", "--input", "x={}/model.onnx"], ".npz, .npy or .pb"),
    "bad --seed": (["--dry-run", "--seed", "-1"], "--seed"),
    "bad --max-rewrites": (["--dry-run", "--max-rewrites", "few"], "--max-rewrites"),
    "bad --timeout": (["--dry-run", "--timeout", "0"], "--timeout"),
    "unknown provider": (["--dry-run", "--provider", "tpu"], "unknown provider 'tpu'"),
    "unknown flag": (["--dry-run", "--fast"], "--fast"),
    "flags are not abbreviated": (["--dry"], "--dry"),
    "json cannot be written": (["--dry-run", "--json", "{}/none/r.json"], "--json"),
    "json into a folder": (["--dry-run", "--json", "{}"], "is a folder"),
    "json into the root": (["--dry-run", "--json", "/"], "is a folder"),
    "json of no name": (["--dry-run", "--json", ""], "--json: the name of the file is empty"),
    "json over the input": (["--dry-run", "--json", "{}/model.onnx"], "same file"),
    "json over the output": (["-o", "{}/o.onnx", "--json", "{}/o.onnx"], "-o writes the model"),
    "output of no name": (["-o", ""], "-o: the name of the output is empty"),
    "stdout wanted twice": (["-o", "-", "--json", "-"], "both want stdout"),
}


@pytest.mark.parametrize("what", USAGE)
def test_bad_usage(run: Run, tmp_path: Path, what: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(good())
    (tmp_path / "link.onnx").symlink_to(model)
    before = files_below(tmp_path)
    options, words = USAGE[what]
    check(run("optimize", model, *(o.replace("{}", str(tmp_path)) for o in options)), 2, words)
    assert files_below(tmp_path) == before and not (tmp_path / "out").exists()


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime has CUDA",
)
@pytest.mark.parametrize("command", ["optimize", "verify"])
def test_cuda_on_a_cpu_build(run: Run, branches: Path, tmp_path: Path, command: str) -> None:
    rest = ["-o", tmp_path / "o.onnx"] if command == "optimize" else [branches]
    check(run(command, branches, *rest, "--provider", "cuda"), 2, "onnxruntime-gpu[cuda,cudnn]")
    assert not (tmp_path / "o.onnx").exists()


def test_cuda_rules_need_no_cuda_without_the_proof(
    run: Run, branches: Path, tmp_path: Path
) -> None:
    assert (
        run(
            "optimize", branches, "-o", tmp_path / "o.onnx", "--provider", "cuda", "--no-verify"
        ).code
        == 0
    )


def test_what_onnxruntime_refuses_needs_no_verify(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "new.onnx", tmp_path / "out.onnx"
    onnx.save(parse(NO_KERNEL), path)
    check(run("optimize", path, "-o", out), 2, "--no-verify")
    assert not out.exists()
    assert (
        run("optimize", path, "-o", out, "--no-verify", "--merge", "always").code == 0
        and out.exists()
    )


def test_a_model_of_an_unknown_domain(run: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(
        parse("""<ir_version: 10, opset_import: ["" : 20, "my.ops" : 1]>
        g (float[2] x) => (float[2] y) { a = Identity(x) y = my.ops.Secret(a) }"""),
        path,
    )
    done = run("optimize", path, "-o", out)
    assert done.code == 0 and "equal, around 1 custom node that did not run" in done.out
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Secret"]


def test_json_goes_into_a_device_or_through_a_link(
    run: Run, branches: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    assert run("inspect", branches, "--json", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink() and b'"inputs"' in (
        tmp_path / "real.json"
    ).read_bytes()
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    assert run("inspect", branches, "--json", pipe).code == 0
    reader.join()
    assert pipe.is_fifo() and b'"inputs"' in got[0]


def test_no_file_that_is_read_is_written(run: Run, branches: Path, tmp_path: Path) -> None:
    recipe, values = tmp_path / "r.toml", tmp_path / "v.npy"
    recipe.write_text("")
    values.write_bytes(b"")
    for words in (["--config", recipe], ["--input", f"x={values}"]):
        for option in ("-o", "--json"):
            rest = [] if option == "-o" else ["--dry-run"]
            check(
                run("optimize", branches, *words, *rest, option, str(words[1]).removeprefix("x=")),
                2,
                "same file",
            )


@pytest.mark.parametrize("command", ["inspect", "optimize", "verify", "grad", "diff", "bench"])
def test_a_pipe_is_no_model(run: Run, tmp_path: Path, command: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rest = {"verify": [pipe], "diff": [pipe], "inspect": []}.get(command, ["-o", tmp_path / "o"])
    check(run(command, pipe, *([] if command == "bench" else rest)), 2, "is a device or a pipe")


# models that onnx's checker and inference let pass: what their operators make of them shows when they run
STUMBLING = {
    "scales that are no vector": (
        """g (float[1,1,2,2] x) => (float[a,b,c,d] y) <float[2,2] s = {1, 1, 1, 1}>
        { y = Upsample<mode = "nearest">(x, s) }""", 9, "and no vector",
    ),
    "a scale that does not broadcast": (
        """g (float[2,3,4,5] x) => (float[a,b,c,d] y) <float[5,1] s = {1, 2, 3, 4, 5}>
        { y = LayerNormalization(x, s) }""", 17, "scale.shape={5,1}",
    ),
    "more results than parts": (
        "g (float[4] x) => (float[N] y) { y, z = Split<num_outputs = 1>(x) }", 18, "'num_outputs' is 1, but 2 are named",
    ),
    "more results than a call's parts": (
        """<ir_version: 8, opset_import: ["": 18, "f": 1]>
        g (float[4] x) => (float[N] y) { y = f.parts<n = 1>(x) }
        <domain: "f", opset_import: ["": 18]> parts <n>(a) => (b) { b, c = Split<num_outputs: int = @n>(a) }""", 18,
        "onnxruntime does not run this model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STUMBLING)
def test_a_rule_that_stumbles_over_an_ill_typed_model(run: Run, tmp_path: Path, what: str) -> None:
    text, opset, words = STUMBLING[what]
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(text, opset=opset, ir_version=8).SerializeToString())
    done = run("grad", path, "-o", tmp_path / "out.onnx", "--no-verify", "--adjoint", "input")
    assert (done.code, len(done.lines)) == (2, 1), done.err
    assert words in done.err
    assert list(tmp_path.iterdir()) == [path]


def test_a_rank_that_numpy_lacks(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    axes = ",".join("1" * 65)
    path.write_bytes(
        parse(f"g (float[{axes}] x) => (float[{axes}] y) {{ y = Relu(x) }}").SerializeToString()
    )
    done = run("bench", path, "--rounds", "1", "--seconds", "0.01")
    assert (done.code, len(done.lines)) == (2, 1)
    assert "65 axes" in done.err


@pytest.mark.parametrize("command", ["bench", "reduce"])
def test_names_that_are_no_text(run: Run, tmp_path: Path, command: str) -> None:
    """Commands that look at models as they are: what stumbles over them is their fault."""
    model = parse("g (float[2] xx) => (float[2] y) { h = f.p(xx) y = Neg(h) }")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"xx", b"\xff\xfe").replace(b"p", b"\xff"))
    words = {
        "bench": ("--rounds", "1"),
        "reduce": ("-o", tmp_path / "out.onnx", "--check", "false"),
    }[command]
    done = run(command, path, *words)
    assert (done.code, len(done.lines)) == (2, 1), done.err
    assert list(tmp_path.iterdir()) == [path]


def test_a_weight_of_more_axes_than_numpys_iterators_know(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = parse("g (float[2] x) => (float y) { t = Add(x, w) y = ReduceSum<keepdims = 0>(t) }")
    model.graph.initializer.append(
        onnx.TensorProto(name="w", data_type=1, dims=[1] * 33, raw_data=bytes(4))
    )
    path.write_bytes(model.SerializeToString())
    assert run("bench", path, "--rounds", "1", "--seconds", "0.01").code == 0
