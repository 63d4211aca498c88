"""What somebody writes on a first day is short, and its results are right."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import runpy
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from scripts.fetch_models import FetchError, fetch
from tests.examples import chromium
from tests.helpers import MODELS_DIR, ROOT

FOLDER = ROOT / "scripts" / "examples" / "days"
LINES = {"deploy": 40, "fgsm": 10, "lora": 10, "own_operator": 30, "saliency": 10, "sharpness": 10}


def own_lines(text: str) -> list[str]:
    """Those that are no import, not empty, no comment and not the module's docstring."""
    tree = ast.parse(text)
    left_out = (
        set(range(1, (tree.body[0].end_lineno or 0) + 1)) if ast.get_docstring(tree) else set()
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = [line for i, line in enumerate(text.splitlines(), 1) if i not in left_out]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def test_lines_are_counted_as_written() -> None:
    text = '"""Words,\ntwo lines."""\n\nimport a\nfrom b import (\n    c,\n)\n\n# a comment\nx = """\nin it\n"""\n'
    assert own_lines(text) == ['x = """', "in it", '"""']


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short_and_says_how_it_is_called(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = own_lines(text)
    assert len(lines) <= LINES[path.stem]
    assert all(len(line) <= 100 for line in lines)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    assert not [token for token in tokens if token.type == tokenize.OP and token.string == ";"]
    assert f"    python scripts/examples/days/{path.name}" in text.split('"""')[1]


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run one of the scripts in an empty folder; its names."""
    monkeypatch.chdir(tmp_path)

    def ran(name: str, *arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with onnxgrad.temporary_rules():
            return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    return ran


@pytest.fixture
def classifier() -> str:
    pytest.importorskip("PIL")
    try:
        return str(fetch("rapidocr_cls"))
    except FetchError as error:
        pytest.skip(str(error))


def scores(model: str, x: Any) -> Any:
    """The score of upright in float64, sample by sample."""
    program = onnxgrad.load(model)
    program.main.add_output(next(v for v in program.main.vars() if v.name == "linear_1.tmp_1"))
    return Reference(onnxgrad.to_proto(program)).run({"x": x})["linear_1.tmp_1"][:, 0]


def slope_along(model: str, x: Any, v: Any, h: float = 1e-6) -> float:
    """By central differences of that score."""
    low, high = (scores(model, x.astype(np.float64) + way * h * v) for way in (-1, 1))
    return float((high - low)[0] / 2 / h)


@pytest.mark.slow
def test_saliency_is_the_slope_and_shows_where_the_text_is(
    day: Any, classifier: str, tmp_path: Path
) -> None:
    pil = pytest.importorskip("PIL.Image")
    names = day("saliency", classifier)
    picture, slope, saliency = names["picture"], names["slope"], names["saliency"]
    assert [p.name for p in tmp_path.iterdir()] == ["saliency.png"]
    with pil.open(tmp_path / "saliency.png") as drawn:
        assert drawn.size == (192, 48)
    assert slope.shape == picture.shape and np.abs(slope).max() > 0
    for seed in range(3):
        v = np.random.default_rng(seed).standard_normal(slope.shape) * (np.abs(slope) > 0)
        expected = slope_along(classifier, picture, v)
        assert float((slope * v).sum()) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    text = (picture[0] < 1).any(0)
    columns = text.any(0)
    assert saliency[:, columns].mean() > 2 * saliency[:, ~columns].mean()


@pytest.mark.slow
def test_one_step_along_the_sign_deceives(day: Any, classifier: str) -> None:
    names = day("fgsm", classifier)
    picture, attacked = names["picture"], names["attacked"]
    assert names["before"][0, 0] > 0.9 > 0.5 > names["after"][0, 0]
    assert 0 < np.abs(attacked - picture).max() <= 6 / 127.5 + 1e-6
    assert np.abs(attacked).max() <= 1
    # and not any step of that size
    noise = 6 / 127.5 * np.random.default_rng(0).choice([-1, 1], picture.shape)
    noisy = np.clip(picture + noise, -1, 1).astype(np.float32)
    assert (
        run(onnx.load(classifier), {"x": noisy})[names["session"].get_outputs()[0].name][0, 0] > 0.9
    )


@pytest.mark.slow
def test_products_with_the_hessian_are_differences_of_gradients(day: Any) -> None:
    file = MODELS_DIR / "training" / "mlp"
    names = day("sharpness", f"{file}.onnx", f"{file}.npz")
    model, data = onnx.load(f"{file}.onnx"), names["data"]
    gradient = onnxgrad.gradient(model, "params", "loss")
    weights = [i.name.removesuffix("_tangent") for i in names["tangents"]]
    rng, low, high, v = np.random.default_rng(1), {}, {}, {}
    for tensor in [t for t in model.graph.initializer if t.name in weights]:
        w = onnx.numpy_helper.to_array(tensor)
        step = (1e-4 * rng.standard_normal(w.shape)).astype(np.float32)
        low[tensor.name], high[tensor.name] = w - step, w + step
        # what float32 made of the step
        v[tensor.name] = (high[tensor.name].astype(np.float64) - low[tensor.name]) / 2e-4
    below, above = (slopes(gradient, moved, data) for moved in (low, high))
    feeds = {f"{name}_tangent": part.astype(np.float32) for name, part in v.items()}
    found = run(names["graph"], {**data, **feeds})
    expected = {name: (above[f"{name}_grad"] - below[f"{name}_grad"]) / 2e-4 for name in weights}
    most = max(np.abs(part).max() for part in expected.values())
    assert len(weights) == 6 and most > 0.1
    for name in weights:
        assert np.abs(found[f"{name}_hvp"] - expected[name]).max() < 1e-4 * most
    # and what power iteration found is the eigenvalue that is largest in size
    length = sum(part.size for part in v.values())
    assert names["size"] == pytest.approx(largest(names, length), rel=1e-3)


def slopes(
    gradient: onnx.ModelProto, moved: dict[str, Any], data: dict[str, Any]
) -> dict[str, Any]:
    """The gradient at other weights, in float64."""
    model = onnx.ModelProto.FromString(gradient.SerializeToString())
    for tensor in model.graph.initializer:
        if tensor.name in moved:
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved[tensor.name], tensor.name))
    return Reference(model).run(data)


def largest(names: dict[str, Any], length: int) -> float:
    """Of the eigenvalues of the whole matrix, column by column from the same graph."""
    shapes = [i.shape for i in names["tangents"]]
    ends = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]

    def product(v: Any) -> Any:
        parts = [p.reshape(s) for p, s in zip(np.split(v, ends), shapes)]
        fed = {i.name: p for i, p in zip(names["tangents"], parts)}
        return np.concatenate(
            [p.ravel() for p in names["session"].run(names["products"], names["data"] | fed)]
        )

    matrix = np.stack([product(column) for column in np.eye(length, dtype=np.float32)])
    return float(np.abs(np.linalg.eigvalsh((matrix + matrix.T) / 2)).max())


@pytest.mark.slow
def test_adapters_learn_and_merged_they_are_the_file_beside_the_model(
    day: Any, tmp_path: Path
) -> None:
    names = day("lora")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapters.safetensors", "merged.onnx"]
    losses = names["losses"]
    assert losses[-1] < 0.5 * losses[0]
    original, merged = onnx.load(names["model"]), onnx.load(tmp_path / "merged.onnx")
    beside = train.load_adapters(original, tmp_path / "adapters.safetensors")
    text = {"input_ids": names["text"]["input_ids"][:8]}
    a, b, c = (run(m, text)["logits"] for m in (beside, merged, original))
    assert np.abs(a - b).max() < 1e-5 * np.abs(a).max() < np.abs(a - c).max()
    assert len(merged.graph.node) == len(original.graph.node)
    assert (tmp_path / "adapters.safetensors").stat().st_size < (
        tmp_path / "merged.onnx"
    ).stat().st_size


@pytest.mark.slow
def test_an_own_operator_has_a_gradient_a_law_and_their_proof(day: Any) -> None:
    names = day("own_operator")
    checked, done = names["checked"], names["done"]
    assert checked.ok and checked.verdict == "agrees"
    assert [n.op_type for n in done.model.graph.node] == ["Rotate", "Tanh"]
    assert [f.rule for f in done.rewrites] == ["turn_once"]
    checks = done.proof.checks
    assert done.proof.ok and checks["float64"].ran and checks["float64"].compared > 0
    # onnxruntime does not know the operator, which the proof says
    assert not checks["onnxruntime"].ran and "my.domain::Rotate" in checks["onnxruntime"].why


@pytest.mark.slow
def test_where_the_rule_or_the_law_is_wrong_the_proof_says_so(
    tmp_path: Path,
) -> None:
    text = (FOLDER / "own_operator.py").read_text(encoding="utf-8")
    path = tmp_path / "wrong.py"
    with onnxgrad.temporary_rules():
        path.write_text(text.replace("angle=-angle", "angle=angle"), encoding="utf-8")
        assert runpy.run_path(str(path))["checked"].verdict == "differs"
    with onnxgrad.temporary_rules(), pytest.raises(onnxgrad.RewriteRefuted, match="turn_once"):
        path.write_text(text.replace("first + second", "first - second"), encoding="utf-8")
        runpy.run_path(str(path))


def deployed(day: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page that the day opens, after what it did on the way."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names = day("deploy")
    assert [names[k] for k in ("missed", "mended", "passed")] == [1, 0, 0]
    report = folder / "report.html"
    assert opened == [report.as_uri()]
    lock = json.loads((folder / "onnxgrad.lock.json").read_text(encoding="utf-8"))
    before, after = (
        onnx.load(folder / name) for name in ("classifier.onnx", "build/classifier.onnx")
    )
    operators = lock["models"]["classifier.onnx"]["operators"]
    assert operators == dict(Counter(node.op_type for node in after.graph.node))
    assert "BatchNormalization" in {node.op_type for node in before.graph.node} - set(operators)
    assert onnxgrad.verify(before, after).ok
    return report


@pytest.mark.slow
def test_a_budget_is_missed_and_kept(
    day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the file, also where torch is installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "torch" else find(name)
    )
    report = deployed(day, tmp_path, monkeypatch)
    assert "required BatchNormalization == 0, found 52, allowed 0" in capfd.readouterr().out
    assert "BatchNormalization" in report.read_text(encoding="utf-8")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch's exporter says of torch
def test_a_budget_is_kept_by_what_torch_exports(
    day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    deployed(day, tmp_path, monkeypatch)
    assert (tmp_path / "build" / "classifier.onnx").is_file()


@pytest.mark.browser
def test_the_page_of_a_deployment_opens(
    day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chromium.executable() is None:
        pytest.skip("there is no chromium on the path")
    report = deployed(day, tmp_path, monkeypatch)
    with chromium.page() as page:
        page("Page.navigate", url=report.as_uri())
        page.until("document.documentElement?.dataset.ready === 'yes'")
        text = page.run("document.body.innerText")
        assert "classifier.onnx" in text and "float64, onnxruntime" in text
        assert text.split().count("passed") >= 2 and "refused" not in text
        assert page.said == [] and set(page.asked) == {report.as_uri()}
