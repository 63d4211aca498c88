from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.recipe import OPTIONS, Recipe, parse
from tests import helpers

TEXT = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
  { a = Identity(x)  b = MatMul(a, w)  c = MatMul(b, w)  y = Relu(c) }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(helpers.parse(TEXT), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


VALUES = {
    "preset": "clean", "passes": "clean", "without": ["inline"], "merge": "never", "target_opset": 20,
    "for": "onnxruntime", "allow_growth": True, "infer_shapes": True, "strip_metadata": "*", "bind_defaults": True,
    "verify.run": False, "verify.provider": "cuda",
    "verify.dims": {"N": 2}, "verify.seeds": [7], "verify.checks": ["float64"], "verify.threads": 2,
    "verify.timeout": 2, "verify.max_memory": "1GB", "verify.inputs": ["a.npz"], "verify.allow_empty": ["y"], "verify.excuse": {"y": "mask"},
    "join": {"model": "b.onnx", "map": {"y": "x"}}, "before": {"bind": {"k": 2}}, "after": {"drop_output": ["z"]},
    "lift": ["w*"], "verify.atol": 1, "verify.rtol": {"y": 1}, "verify.metric": "psnr=40", "verify.coverage": "95%",
    "fix_dim": {"N": 2}, "rebasable": True, "float16": True, "metadata": {"a": "b"}, "lint": {"host-paths": "off"}, "verify.exact": True,
    "runtimes": ["cpu"],
}  # fmt: skip


def nested(key: str, value: object) -> dict[str, object]:
    table, _, name = key.rpartition(".")
    return {table: {name: value}} if table else {name: value}


@pytest.mark.parametrize("key", OPTIONS)
def test_every_key_is_an_option_of_optimize(key: str) -> None:
    made = parse(nested(key, VALUES[key]), "r.toml").options("m.onnx", OptimizeOptions())
    assert getattr(made, OPTIONS[key].name) != OPTIONS[key].default


def test_what_the_user_wrote_wins() -> None:
    recipe = Recipe(
        "r.toml", {"verify.dims": {"N": 2}, "merge": "never", "passes": "clean", "require": {}}
    )
    made = recipe.options(
        "m.onnx", OptimizeOptions.from_settings({"dims": {"N": 1}, "preset": "default"})
    )
    assert (made.dims, made.merge, made.preset, made.passes) == ({"N": 1}, "never", "default", None)


def optimize(*words: str) -> int:
    return main(["optimize", "m.onnx", "-q", *words])


def test_a_requirement_that_holds_and_one_that_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = '[models."*.onnx"]\nrequire = { MatMul = "<=2", nodes = 3, "MatMul+Relu" = "==3" }\n'
    (folder / "ok.toml").write_text(recipe)
    assert optimize("--config", "ok.toml", "-o", "out.onnx") == 0
    (folder / "no.toml").write_text(recipe.replace("<=2", "<=1"))
    assert optimize("--config", "no.toml", "-o", "other.onnx") == 1
    assert "no.toml not met: 2 MatMul, not <= 1" in capsys.readouterr().err
    assert (folder / "out.onnx").exists() and not (folder / "other.onnx").exists()


def test_pyproject_of_the_current_folder(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.onnxgrad]\npasses = ["remove-unused"]\n')
    assert optimize("-o", "out.onnx") == 0
    assert len(onnx.load(folder / "out.onnx").graph.node) == 4
    # what is written on the command line wins
    assert optimize("--passes", "remove-noops", "-o", "two.onnx") == 0
    assert len(onnx.load(folder / "two.onnx").graph.node) == 3


def test_a_pyproject_that_turns_the_proof_off_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text("[tool.onnxgrad.verify]\nrun = false\n")
    for quiet in ([], ["-q"]):
        assert optimize("--dry-run", *quiet) == 0
        assert "pyproject.toml of this folder turns the proof off" in capsys.readouterr().err
    assert optimize("--dry-run", "--no-verify") == 0 and capsys.readouterr().err == ""


def test_verification_options_reach_the_proof(folder: Path) -> None:
    (folder / "r.toml").write_text(
        '[verify]\ndims = { N = 3 }\nseeds = [7]\nchecks = ["onnxruntime"]\ntolerance = 1e-3\n'
    )
    assert optimize("--config", "r.toml", "-o", "out.onnx", "--json", "report.json") == 0
    (model,) = json.loads((folder / "report.json").read_text())["models"]
    proof = model.get("proof") or model.get("report") or model
    text = json.dumps(proof)
    assert '"seed": 7' in text and '"N": 3' in text and '"seed": 0' not in text


def test_a_tolerance_below_the_noise_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """g (float[4,64] x) => (float[4,64] y) { b = BatchNormalization(x, s, s, s, s)  c = MatMul(b, w)  y = MatMul(c, w) }"""
    from tests.rewriting import model_of, weights

    model = model_of(text, weights({"w": (64, 64), "s": (64,)}, positive="s"))
    onnx.save(model, folder / "m.onnx")
    (folder / "r.toml").write_text('preset = "inference"\n[verify]\ntolerance = 1e-12\n')
    assert optimize("--config", "r.toml", "-o", "out.onnx") == 1
    assert "tolerance = 1e-12" in capsys.readouterr().err


def test_several_models_have_their_own_options(folder: Path) -> None:
    onnx.save(helpers.parse(TEXT), folder / "n.onnx")
    (folder / "r.toml").write_text(
        'passes = "remove-unused"\n[models."n.onnx"]\npasses = "remove-noops"\n'
    )
    assert (
        main(["optimize", "m.onnx", "n.onnx", "-q", "--config", "r.toml", "--out-dir", "out"]) == 0
    )
    assert [len(onnx.load(folder / "out" / name).graph.node) for name in ("m.onnx", "n.onnx")] == [
        4,
        3,
    ]


def test_a_missing_file_and_a_wrong_preset(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert optimize("--config", "none.toml", "--dry-run") == 2
    (folder / "r.toml").write_text('preset = "fastest"\n')
    assert optimize("--config", "r.toml", "--dry-run") == 2
    assert "'preset' must be one of clean, default" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Convv", 2),  # of no schema and not in the model
        ("Conv", 0),  # absent counts 0
        ("Einsum + Conv", 0),
        ("MatMul+Gem", 2),
        ("ai.onnx.ml::Scaler", 0),
        ("ai.onnx.ml::Scalar", 2),
        ("com.acme::Thing", 2),
    ],
)
def test_only_operators_can_be_required(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    (folder / "r.toml").write_text(f'require = {{ "{name}" = "<=2" }}\n')
    assert optimize("--config", "r.toml", "-o", "out.onnx") == code
    error = capsys.readouterr().err
    assert (folder / "out.onnx").exists() == (code == 0) and ("is not an operator" in error) == (
        code == 2
    )
    assert "did you mean 'Conv'" in error or name != "Convv"


def test_a_custom_operator_of_the_model_can_be_required(folder: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "com.acme": 1]> g (float[2] x) => (float[2] y) { y = com.acme.Thing(x) }
      <domain: "com.acme", opset_import: ["": 20]> Thing (a) => (b) { b = Neg(a) }"""
    onnx.save(helpers.parse(text), folder / "m.onnx")
    (folder / "r.toml").write_text('require = { "com.acme::Thing" = "<=1" }\n')
    assert optimize("--config", "r.toml", "-o", "out.onnx") == 0


def test_a_glob_that_means_no_model_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "r.toml").write_text(
        '[models."m.onnx"]\nmerge = "auto"\n[models."resnet*.onnx"]\nrequire = { Conv = 0 }\n'
    )
    assert optimize("--config", "r.toml", "-o", "out.onnx") == 0
    assert (
        capsys.readouterr().err
        == 'onnxgrad: r.toml: models."resnet*.onnx" matches none of the given models\n'
    )


def test_an_output_that_may_be_empty(folder: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { n = Abs(x) e = Exp(n) i = Identity(e) m = Neg(i) y = Log(m) }"
    onnx.save(helpers.parse(text), folder / "m.onnx")
    assert optimize("-o", "out.onnx") == 1 and not (folder / "out.onnx").exists()
    (folder / "r.toml").write_text('[verify]\nallow_empty = ["y"]\n')
    assert optimize("--config", "r.toml", "-o", "out.onnx") == 0
    assert optimize("--allow-empty", "y", "-o", "other.onnx") == 0


def test_a_recipe_for_one_runtime(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cube = "p = Pow(x, e) m = Mul(p, k) a = Add(x, m) u = Mul(a, s) t = Tanh(u) o = Add(t, i)"
    text = f"""g (float[N,4] x) => (float[N,4] y) <float e = {{3}}, float k = {{0.044715}},
      float s = {{0.7978845608}}, float i = {{1}}, float h = {{0.5}}> {{ {cube} f = Mul(x, h) y = Mul(f, o) }}"""
    onnx.save(helpers.parse(text, opset=17), folder / "m.onnx")
    (folder / "ok.toml").write_text(
        'for = "onnxruntime"\nrequire = { "com.microsoft::FastGelu" = 1, nodes = 1 }\n'
    )
    assert optimize("--config", "ok.toml", "-o", "out.onnx") == 0
    assert optimize("--for", "onnxruntime", "-o", "same.onnx") == 0
    assert (folder / "out.onnx").read_bytes() == (folder / "same.onnx").read_bytes()
    (folder / "no.toml").write_text('for = "tvm"\n')
    assert optimize("--config", "no.toml", "-o", "other.onnx") == 2
    assert "'for' must be one of onnxruntime, not 'tvm'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "words", "bounds"),
    [
        ('rtol = 1e-2\nmetric = "cosine=0.9"', [], "cosine=0.9 rtol=0.01"),
        ('metric = ["worst=0.5", "psnr=3"]', [], "worst=0.5 psnr=3"),
        ("rtol = 1e-2", ["--rtol", "0.5"], "rtol=0.5"),
    ],
)
def test_bounds_of_the_proof(folder: Path, lines: str, words: list[str], bounds: str) -> None:
    (folder / "near.toml").write_text(f"[verify]\n{lines}\n")
    words = ["--config", "near.toml", "-o", "out.onnx", "--json", "r.json", *words]
    assert optimize(*words) == 0
    (model,) = json.loads((folder / "r.json").read_text())["models"]
    assert model["proof"]["verdict"] == "within bounds" and model["proof"]["bounds"] == bounds


def test_a_bound_of_one_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "near.toml").write_text("[verify]\natol = { nothing = 1.0 }\n")
    assert optimize("--config", "near.toml", "-o", "out.onnx") == 2
    assert "a bound is given for 'nothing', which is not an output" in capsys.readouterr().err
