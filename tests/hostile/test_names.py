"""A model, its folder and its weights, in which every string is hostile, through every command: stdout, stderr and
written files show letters, and nothing that steers a terminal, a build server or a page.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxgrad.cli.app import COMMANDS, main
from tests.helpers import parse
from tests.report.html.common import data_of

HOSTILE = "n\n::error file=a.py::é漢\r\n##[error]x ##vso[task]\x1b[31m\x85\u202e\u200b\u2028\ufeff\u3164<img src=x>"
# a file name: no slash, and short enough
FILE = "f\n::error::é漢\x1b[31m\u202e<img src=x>.onnx"
# what a build server obeys at the beginning of a line, and anywhere in it
_COMMAND = re.compile(
    r"(?im)^\s*::(error|warning|set-output|add-mask|stop-commands)\b|##\[|##vso\["
)
_UNSEEN = set("\u3164\u115f\u1160\uffa0\u034f\ufe0f")
_TEXT = {".json", ".jsonl", ".html", ".md", ".xml", ".txt"}
# the same in the words of Python, which knows nothing of `onnxgrad.wording`
_SHOWN = ("L", "M", "N", "P", "S")

MODEL = """
<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
g (float[N, 4] x) => (float[N, 3] y, float l)
<float[4, 3] w = {0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3}, float[4, 3] v = {0.2, 0.2, 0.3, 0.4, 0.1, 0.3, 0.2, 0.1, 0.3, 0.2, 0.1, 0.3}> {
  s = Identity (x)
  c = my.F (s)
  p = MatMul (c, w)
  q = MatMul (c, v)
  t = Add (p, q)
  y = Tanh (t)
  l = ReduceSum <keepdims = 0> (y)
}
<domain: "my", opset_import: ["" : 20]> F (a) => (b) { b = Sin (a) }
"""  # fmt: skip


def hostile() -> ModelProto:
    """MODEL with every name, symbol, entry and text made hostile, each another one."""
    model = parse(MODEL)

    def bad(name: str) -> str:
        return name and f"{name}{HOSTILE}"

    graph = model.graph
    graph.name = model.producer_name = model.producer_version = model.domain = HOSTILE
    graph.doc_string = model.doc_string = HOSTILE
    model.metadata_props.add(key=HOSTILE, value=HOSTILE)
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), bad(tensor.name)))
        tensor.doc_string = HOSTILE
    for value in (*graph.input, *graph.output):
        value.name, value.doc_string = bad(value.name), HOSTILE
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = bad(dim.dim_param)
    for i, node in enumerate(graph.node):
        node.name, node.doc_string = bad(f"node{i}"), HOSTILE
        node.input[:], node.output[:] = map(bad, node.input), map(bad, node.output)
        node.metadata_props.add(key=HOSTILE, value=HOSTILE)
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=HOSTILE)
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', {HOSTILE!r}, 'x']")
    for function in model.functions:
        function.doc_string, function.name, function.domain = HOSTILE, bad("F"), bad("my")
    graph.node[1].op_type, graph.node[1].domain = bad("F"), bad("my")
    model.opset_import[1].domain = bad("my")
    return model


def name(text: str) -> str:
    return f"{text}{HOSTILE}"


def calls() -> dict[str, list[str]]:
    """Words for each command; MODEL is the model's file, and OUT a file to write."""
    page = ["--html", "page.html", "--json", "found.json"]
    return {
        "inspect": ["inspect", FILE, "-v", *page],
        "inspect --text": ["inspect", FILE, "--text"],
        "inspect --weights": ["inspect", FILE, "--weights", "--json", "-"],
        "metadata": ["metadata", FILE, "--json", "-"],
        "metadata --set": ["metadata", FILE, "--set", f"{HOSTILE}=b", "-o", name("o")],
        "diff": ["diff", FILE, "other.onnx", "-v", *page],
        "optimize": ["optimize", FILE, "-o", name("o"), "--merge", "always", "-v", *page],
        "optimize --explain": ["optimize", FILE, "--dry-run", "--explain", "--no-verify", "--print-after", "*", "--print-after", "*=texts"],
        "optimize --inline": ["optimize", FILE, "--dry-run", "--no-verify", "--inline", "*", "--json", "-"],
        "verify": ["verify", FILE, FILE, "-v"],
        "verify, different": ["verify", FILE, "other.onnx", "--json", "-"],
        "grad": ["grad", FILE, "-o", name("g"), "--target", name("l"), "-v", *page],
        "check-grad": ["check-grad", FILE, "--target", name("l")],
        "convert-opset": ["convert-opset", FILE, "--to", "21", "-o", "c.onnx", "-v"],
        "float16": ["float16", FILE, "-o", "h.onnx", "--metric", "worst=1"],
        "extract": ["extract", FILE, "--outputs", name("t"), "-o", "e.onnx"],
        "open-batch": ["open-batch", "batch.onnx", "-o", "e.onnx", "-v", "--json", "-"],
        "vmap": ["vmap", "batch.onnx", "-o", "e.onnx", "-v", "--json", "-"],
        "edit": ["edit", FILE, "--rename", f"{name('t')}={name('u')}", "-o", "i.onnx", "-v"],
        "no such input": ["edit", FILE, "--bind", f"{name('t')}=1", "-o", "i.onnx"],
        "join": ["join", FILE, FILE, "--map", f"{name('x')}={name('x')}", "--prefix", name("p"), "--keep-output", name("l"), "-o", "j.onnx", "-v"],
        "preprocess": ["preprocess", FILE, "--after", f"{name('l')}=sigmoid", "-o", "q.onnx", "-v"],
        "no such lift": ["lift", FILE, "--weights", name("v"), "--prepare", "k.onnx", "-o", "l.onnx", "-v"],
        "lift": ["lift", "lifted.onnx", "--weights", name("v"), "--prepare", "k.onnx", "-o", "l.onnx", "-v"],
        "lora": ["lora", FILE, "--targets", name("w"), "--rank", "1", "-o", "a.onnx", "-v"],
        "run": ["run", FILE, "--save", f"{name('f')}.npz", "--json", "-"],
        "no such record": ["rebase", FILE, "--weights", "other.onnx", "-o", "w.onnx", "-v"],
        "no such matrix": ["lora", FILE, "--targets", name("z"), "-o", "a.onnx"],
        "reduce": ["reduce", FILE, "-o", "r.onnx", "--check", "false"],
        "bench": ["bench", FILE, "other.onnx", "--rounds", "1", "--seconds", "0.01", *page],
        "place": ["place", FILE, "--device", "cuda=op:Mat*", "-o", "p.onnx"],
        "train-step": ["train-step", FILE, "-o", "step", "--loss", name("l"), "--optimizer", "sgd", "-v"],
        "fit": ["fit", "step", "--data", "data.npz", "--original", FILE, "-o", "t.onnx", "--log", "log.jsonl", "--folder", name("run"), "-v"],
        "ci": ["ci", "--update", "--junit", "j.xml", "--markdown", "m.md", "--annotations", *page, "-v"],
        "ci, refused": ["ci", "required.toml", "--junit", "k.xml", "--markdown", "n.md", "--annotations", "--html", "q.html"],
        "no such target": ["grad", FILE, "-o", "g.onnx", "--target", name("z"), "-v"],
        "no such weight": ["grad", FILE, "-o", "g.onnx", "--target", name("l"), "--wrt", HOSTILE],
        "no such file": ["inspect", name("nowhere"), "-v"],
        "no such command": [HOSTILE],
        "no such option": ["inspect", f"--{HOSTILE}"],
        "no such size": ["verify", FILE, FILE, "--dim", f"{HOSTILE}=3"],
        "passes": ["passes", HOSTILE], "ops": ["ops", HOSTILE], "help": ["help", HOSTILE], "completion": ["completion", HOSTILE],
    }  # fmt: skip


def test_every_command_is_tried() -> None:
    tried = {words[0] for words in calls().values()}
    assert sorted(set(COMMANDS) - tried) == ["doctor"]  # which reads no model and no name


def wrong(text: str) -> Iterator[str]:
    """What `text` does to who reads it."""
    if found := _COMMAND.search(text):
        yield f"a command: {text[found.start() :][:60]!r}"
    for c in sorted({*text} - {"\n", " "}):
        if unicodedata.category(c)[0] not in _SHOWN or c in _UNSEEN:
            yield f"{c!r} in {text[max(text.index(c) - 40, 0) :][:80]!r}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in ("GITHUB_WORKSPACE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    model = hostile()
    onnx.save(model, FILE)
    other = hostile()
    weight = other.graph.initializer[0]
    array = numpy_helper.to_array(weight) * 2
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    other.graph.node[5].op_type = "Sin"
    onnx.save(other, "other.onnx")
    fixed = hostile()
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 1
    onnx.save(fixed, "batch.onnx")
    lifted = hostile()
    lifted.graph.node[3].input[1] = name("e")
    lifted.graph.node.insert(
        0, onnx.NodeProto(op_type="Abs", input=[name("v")], output=[name("e")])
    )
    onnx.save(lifted, "lifted.onnx")
    rng = np.random.default_rng(0)
    np.savez("data.npz", **{name("x"): rng.random((4, 4), np.float32)})
    recipe = '[ci]\nmodels = ["f*.onnx"]\nout = "built"\n'
    Path("onnxgrad.toml").write_text(recipe, encoding="utf-8")
    Path("required.toml").write_text(f"{recipe}[require]\nSin = 0\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_no_name_steers_who_reads_it(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, codes = [], {}
    for title, words in calls().items():
        before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
        codes[title] = main(words)
        shown = dict(zip(("stdout", "stderr"), capfd.readouterr(), strict=True))
        if "--annotations" in words:  # which are commands of ours
            lines = shown["stderr"].split("\n")
            shown["stderr"] = "\n".join(a for a in lines if not a.startswith("::error file=f\\n"))
            assert "<img" in shown["stderr"] or title == "ci"
        for path in folder.rglob("*"):
            if path.suffix in _TEXT and before.get(path) != path.stat().st_mtime_ns:
                shown[path.name] = text = path.read_text(encoding="utf-8")
                if path.suffix in (".html", ".md"):
                    assert not re.search(r"(?<!\\)<img", text), (title, path.name)
                if path.suffix == ".html":  # beside its scripts
                    rest = re.sub(r"(?s)<(script|style)>.*?</\1>", "", text)
                    shown[path.name] = "\n".join([rest, *strings(data_of(text))])
        if path := next((w for w in words if w == "-"), None):
            assert isinstance(json.loads(shown["stdout"]), dict)
        faults += [
            f"{title}, {where}: {what}" for where, text in shown.items() for what in wrong(text)
        ]
    assert faults == []
    refused = {t: code for t, code in codes.items() if code}
    answers = dict.fromkeys(("diff", "verify, different", "ci, refused"), 1)
    topics = dict.fromkeys(("passes", "ops", "help", "completion"), 2)
    assert refused == answers | topics | {t: 2 for t in codes if "no such" in t}


def strings(data: Any) -> Iterator[str]:
    """Every text of JSON's types."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, (list, dict)):
        for one in data if isinstance(data, list) else [*data, *data.values()]:
            yield from strings(one)
