"""Seventeen faults of as many kinds in as many models: `ci` names each on the first screen of the terminal,
of Markdown, of the page and of JUnit, and refuses those that make a model useless.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxgrad
from onnxgrad.jobs.ci.outcome import CiReport
from tests.helpers import parse
from tests.report.html.common import data_of

LINES = 62  # of the first screen: the table, and up to two lines for each of 17 models
CLASSIFIER = """g (float[N,8] x) => (float[N,6] y) <float eps = {0.01}, int64[1] k = {2}> {
    p = MatMul(x, w)  h = Relu(p)  m = MatMul(h, c)  b = Add(m, bias)  s = Softmax<axis = -1>(b)
    y = Add(s, eps) }"""
TABLE = """g (int64[N,4] ids) => (float[N,4,6] y) {
    e = Gather(table, ids)  m = MatMul(e, c)  y = Sigmoid(m) }"""
DETECTOR = """g (float[1,5,4] boxes, float[1,2,5] scores) => (int64[K,3] y)
    <int64 most = {5}, float iou = {0.5}, float least = {0.3}> {
    y = NonMaxSuppression(boxes, scores, most, iou, least) }"""
RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {"w": (8, 16), "c": (16, 6), "bias": (6,), "table": (30, 16)}.items()
}


def made(text: str, **weights: np.ndarray) -> ModelProto:
    model = parse(text)
    read = {name for node in model.graph.node for name in node.input}
    for name, value in {**WEIGHTS, **weights}.items():
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def changed(name: str, place: object, value: float) -> np.ndarray:
    found = WEIGHTS[name].copy()
    found[place] = value  # type: ignore[index]  # any index of numpy
    return found


def fixed_batch() -> ModelProto:
    return made(CLASSIFIER.replace("float[N,8]", "float[1,8]").replace("float[N,6]", "float[1,6]"))


def opset(model: ModelProto, version: int) -> ModelProto:
    model.opset_import[0].version = version
    model.producer_version = "next"
    return model


def two_outputs(*order: str) -> ModelProto:
    types = {"y": "float[N,6] y", "h": "float[N,16] h"}
    return made(CLASSIFIER.replace("float[N,6] y", ", ".join(types[name] for name in order)))


def slow(text: str) -> str:
    """The text with twenty exponentials and their logarithms before the end."""
    values = ["s", *(f"l{i}" for i in range(20))]
    chain = "".join(f" e{i} = Exp({x})  l{i} = Log(e{i})" for i, x in enumerate(values[:-1]))
    return text.replace("y = Add(s, eps)", f"{chain}  y = Add({values[-1]}, eps)")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 12\n"


# kind of fault -> the model before, after, words that name the fault, exit code
PLANTS: dict[str, tuple[Callable[[], ModelProto], Callable[[], ModelProto | bytes], str, int]] = {
    "nan_in_table": (
        lambda: made(TABLE),
        lambda: made(TABLE, table=changed("table", (3, 3), np.nan)),
        "table: 1 value became NaN or infinite",
        1,
    ),
    "infinite_bias": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER, bias=changed("bias", 2, np.inf)),
        "bias: 1 value became NaN or infinite",
        1,
    ),
    "zero_classifier": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER, c=0 * WEIGHTS["c"]),
        "c became all zero",
        1,
    ),
    "dead_class": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER, c=changed("c", (slice(None), 4), 0)),
        "c: 1 row or column became all zero",
        1,
    ),
    "lost_threshold": (
        lambda: made(DETECTOR),
        lambda: made(DETECTOR.replace("{0.3}", "{0.0}")),
        "least became all zero",
        1,
    ),
    "infinite_output": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER.replace("y = Add(s, eps)", "o = Sub(s, eps)  y = Log(o)")),
        "y became NaN or infinite",
        1,
    ),
    "other_threshold": (
        lambda: made(DETECTOR),
        lambda: made(DETECTOR.replace("{0.5}", "{0.7}")),
        "iou 0.5 → 0.7",
        0,
    ),
    "rounded_weights": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER, w=WEIGHTS["w"].astype(np.float16).astype(np.float32)),
        "1 of 2 weights (w)",
        0,
    ),
    "fixed_batch": (lambda: made(CLASSIFIER), fixed_batch, "f32[N,8] → f32[1,8]", 0),
    "lost_activation": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER.replace("h = Relu(p)", "h = Identity(p)")),
        "nodes (Identity, Relu)",
        0,
    ),
    "other_attribute": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER.replace("axis = -1", "axis = 0")),
        "nodes (Softmax)",
        0,
    ),
    "other_exporter": (
        lambda: made(CLASSIFIER),
        lambda: opset(made(CLASSIFIER), 21),
        "opset 20 → 21",
        0,
    ),
    "training_mode": (
        lambda: made(CLASSIFIER),
        lambda: made(
            CLASSIFIER.replace("int64[1] k = {2}", "float ratio = {0.2}, bool train = {1}").replace(
                "h = Relu(p)", "q = Relu(p)  h = Dropout(q, ratio, train)"
            )
        ),
        "nodes (Dropout)",
        0,
    ),
    "swapped_outputs": (
        lambda: two_outputs("y", "h"),
        lambda: two_outputs("h", "y"),
        "order of outputs y, h → h, y",
        0,
    ),
    "slow_chain": (lambda: made(CLASSIFIER), lambda: made(slow(CLASSIFIER)), "nodes (Exp, Log)", 0),
    "half_a_file": (
        lambda: made(CLASSIFIER),
        lambda: made(CLASSIFIER).SerializeToString()[:400],
        "not an ONNX model, or a truncated one",
        2,
    ),
    "pointer_of_git_lfs": (lambda: made(CLASSIFIER), lambda: POINTER, "run `git lfs pull`", 2),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CiReport:
    folder = tmp_path_factory.mktemp("plants")
    for kind, (before, *_) in PLANTS.items():
        onnx.save(before(), folder / f"{kind}.onnx")
    (folder / "r.toml").write_text('[ci]\nmodels = ["*.onnx"]\nout = "build"\n')
    assert onnxgrad.ci(folder / "r.toml", update=True).ok
    for kind, (_, after, *_) in PLANTS.items():
        fault = after()
        content = fault if isinstance(fault, bytes) else fault.SerializeToString()
        (folder / f"{kind}.onnx").write_bytes(content)
    return onnxgrad.ci(folder / "r.toml", keep_going=True)


@pytest.mark.slow
def test_errors_are_refused_and_the_rest_is_reported(report: CiReport) -> None:
    wanted = {f"{kind}.onnx": code for kind, (*_, code) in PLANTS.items()}
    assert {m.name: m.exit_code for m in report.models} == wanted and report.exit_code == 2
    statuses = {m.name: m.status for m in report.models}
    kinds = {0: "changed", 1: "failed", 2: "error"}
    assert statuses == {name: kinds[code] for name, code in wanted.items()}
    folder = Path(report.recipe).parent / "build"
    assert sorted(p.name for p in folder.iterdir()) == sorted(n for n, c in wanted.items() if not c)


def texts(report: CiReport) -> dict[str, str]:
    """What the first screen of each form says."""
    terminal = "\n".join(str(report).splitlines()[:LINES])
    (first, *_) = data_of(report.to_html())["reports"]
    cases = ElementTree.fromstring(report.to_junit()).iter("testcase")
    return {
        "terminal": terminal,
        "markdown": "\n".join(report.to_markdown().splitlines()[: 2 * LINES]),
        "page": " ".join(note for note, _ in first["verdict"]["notes"]),
        "junit": " ".join(
            f"{case.get('name')} {' '.join(case.itertext())}"
            + "".join(str(part.get("message")) for part in case)
            for case in cases
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["terminal", "markdown", "page", "junit"])
def test_all_are_named_at_once(report: CiReport, form: str) -> None:
    text = texts(report)[form].replace("\\", "")
    missing = [kind for kind, (*_, words, _) in PLANTS.items() if words not in text]
    assert not missing, (missing, text)
