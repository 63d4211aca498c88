"""A model in another runtime: a Python with another onnxruntime, and other providers."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError, NotProved
from onnxgrad.verify.running.installed import versions_in
from onnxgrad.verify.running.runtimes import Runtime, programs
from onnxgrad.verify.running.session import versions
from tests.helpers import MODELS_DIR, parse

TEXT = """g (float[N,4] x) => (float[N,2] y) <float[4,2] w = {1,-2, 0.5,0.3, -0.4,0.7, 1,1}> {
  a = Sin (x)  t = Tanh (a)  h = MatMul (t, w)  y = Softplus (h) }"""
# an interpreter in which one operator is wrong by five parts in ten thousand
LIAR = """
import numpy, onnx, onnxruntime
class Session(onnxruntime.InferenceSession):
    def __init__(self, model, *rest, **options):
        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        for i, node in [*enumerate(proto.graph.node)]:
            if node.op_type == "Tanh":
                name, node.output[0] = node.output[0], "true"
                proto.graph.node.insert(i + 1, onnx.helper.make_node("Mul", ["true", "five"], [name]))
                proto.graph.initializer.append(
                    onnx.numpy_helper.from_array(numpy.float32(1.0005), "five"))
                break
        super().__init__(proto.SerializeToString(), *rest, **options)
onnxruntime.InferenceSession = Session
"""
# the same operator is wrong on one provider alone, which says that it runs there
LYING_PROVIDER = f"""
{LIAR}
Wrong, offered = Session, onnxruntime.get_available_providers()
class Session(Wrong.__base__):
    def __new__(cls, model, options=None, providers=(), **more):
        names = [p[0] if isinstance(p, tuple) else p for p in providers]
        cpu = ["CPUExecutionProvider"]
        made = (Wrong if names[0] == "NpuExecutionProvider" else cls.__base__)(
            model, options, providers=cpu, **more)
        made.get_providers = lambda: names
        return made
onnxruntime.InferenceSession = Session
onnxruntime.get_available_providers = lambda: ["NpuExecutionProvider", *offered]
"""
OTHER = "ONNXGRAD_OTHER_PYTHON"  # a Python with another version of onnxruntime


def interpreter(folder: Path, before: str = "", name: str = "python") -> str:
    """A program that is started as Python is, and runs `before` first."""
    path = folder / name
    text = f"#!{sys.executable}\nimport sys\n{before}\n"
    path.write_text(f"{text}code = sys.argv[3]\nsys.argv = ['-c', *sys.argv[4:]]\nexec(code)\n")
    path.chmod(0o755)
    return str(path)


def test_a_lying_runtime_is_found_and_its_first_wrong_layer_named(tmp_path: Path) -> None:
    model = parse(TEXT)
    same = onnxgrad.verify(model, against=interpreter(tmp_path), layers=True)
    assert same.verdict == "equal" and same.layers is not None and same.layers.first is None
    assert f"on cpu of onnxruntime {versions()['onnxruntime']} and on" in same.summary
    liar = interpreter(tmp_path, LIAR, "liar")
    found = onnxgrad.verify(model, against=liar, layers=True)
    assert found.verdict == "different" and found.worst is not None and found.worst.output == "y"
    assert found.layers is not None and found.layers.first is not None
    assert (found.layers.first.name, found.layers.first.operator) == ("t", "Tanh")
    several = onnxgrad.verify(model, against=[interpreter(tmp_path), liar])
    assert not several.ok and "onnxruntime" in several.checks and len(several.checks) == 2


def test_a_lying_provider_is_found_and_its_first_wrong_layer_named(tmp_path: Path) -> None:
    """The same interpreter computes right on its CPU."""
    model, python = parse(TEXT), interpreter(tmp_path, LYING_PROVIDER)
    assert onnxgrad.verify(model, against=python).verdict == "equal"
    npu = f"{python}:NpuExecutionProvider{{precision=high}}"
    found = onnxgrad.verify(model, against=npu, layers=True)
    assert found.verdict == "different" and "Npu" in found.summary
    assert found.layers is not None and found.layers.first is not None
    assert (found.layers.first.name, found.layers.first.operator) == ("t", "Tanh")


def test_reduce_makes_the_file_for_the_bug_report(tmp_path: Path) -> None:
    liar = interpreter(tmp_path, LIAR, "liar")
    path = tmp_path / "m.onnx"
    path.write_bytes(parse(TEXT).SerializeToString())

    def check(model: onnx.ModelProto) -> bool:
        return onnxgrad.verify(model, against=liar).verdict == "different"

    small = onnxgrad.reduce(path, check=check)
    assert [n.op_type for n in small.graph.node] == ["Tanh"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: str(folder / "nowhere" / "python"), "no such interpreter"),
        (lambda folder: interpreter(folder, "sys.exit('no room')"), "no room"),
        (lambda folder: interpreter(folder, "sys.modules['numpy'] = None"), "numpy"),
        (lambda folder: interpreter(folder, "sys.modules['onnxruntime'] = None"), "has no onnxruntime"),
        (lambda folder: interpreter(folder, "sys.version_info = (3, 8)"), "3.8 is too old"),
        (lambda _: "NoSuchExecutionProvider", "NoSuchExecutionProvider is missing"),
        (lambda folder: f"{interpreter(folder)}:NoSuchExecutionProvider", "is missing"),
    ],
)  # fmt: skip
def test_a_runtime_that_cannot_run_is_refused_in_one_line(
    make: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as found:
        onnxgrad.verify(parse(TEXT), against=make(tmp_path))
    assert says in str(found.value) and "\n" not in str(found.value)


def test_one_model_and_the_onnxruntime_check_are_needed() -> None:
    model, provider = parse(TEXT), "CPUExecutionProvider"
    for options in ({"b": model}, {"expect": {"y": np.zeros(1)}}, {"checks": ["float64"]}):
        with pytest.raises(InputError, match="one model with itself"):
            onnxgrad.verify(model, against=provider, **options)  # type: ignore[arg-type]


def test_a_model_that_does_not_load_there(tmp_path: Path) -> None:
    old = "import onnxruntime\ndef refuse(*_, **__): raise ValueError('Unsupported model IR')\n"
    other = interpreter(tmp_path, f"{old}onnxruntime.InferenceSession = refuse")
    found = onnxgrad.verify(parse(TEXT), against=other)
    assert found.verdict == "different" and "Unsupported model IR" in found.summary


def test_a_size_of_zero_that_does_not_run_there(tmp_path: Path) -> None:
    """There is no second model to speak of."""
    picky = """
import onnxruntime
class Session(onnxruntime.InferenceSession):
    def run_with_ort_values(self, names, feeds, *rest):
        if any(0 in v.shape() for v in feeds.values()):
            raise ValueError("empty")
        return super().run_with_ort_values(names, feeds, *rest)
    def run(self, names, feeds, *rest):
        if any(0 in v.shape for v in feeds.values()):
            raise ValueError("empty")
        return super().run(names, feeds, *rest)
onnxruntime.InferenceSession = Session
"""
    report = onnxgrad.verify(parse(TEXT), against=interpreter(tmp_path, picky))
    (said,) = report.coverage.warnings
    assert said.startswith("N=0 runs in the original, and not in the model in the other runtime")


def test_limits_hold_there(tmp_path: Path) -> None:
    slow = (
        "import onnxruntime, time\n"
        + "onnxruntime.InferenceSession = lambda *_, **__: time.sleep(60)"
    )
    found = None
    try:
        found = onnxgrad.verify(parse(TEXT), against=interpreter(tmp_path, slow), timeout=8)
    except NotProved as error:
        assert "longer than 8 s" in str(error)
    assert found is None or found.verdict == "not proved"


def test_forms_of_a_runtime() -> None:
    provider = "XnnpackExecutionProvider{intra_op_num_threads=2, a=b}"
    pairs = (("intra_op_num_threads", "2"), ("a", "b"))
    here = Runtime.of(provider)
    assert here == Runtime("", "XnnpackExecutionProvider", pairs)
    there = Runtime.of(f"{sys.executable}:{provider}")
    assert there == Runtime(os.path.abspath(sys.executable), "XnnpackExecutionProvider", pairs)
    assert Runtime.of(sys.executable).provider == "CPUExecutionProvider"
    assert programs([provider, "a/python", "b/python:CUDAExecutionProvider"]) == [
        "a/python", "b/python",
    ]  # fmt: skip


def test_a_recipe_names_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is compared there; an interpreter runs only if the caller names the recipe."""
    monkeypatch.chdir(tmp_path)
    liar, model = interpreter(tmp_path, LIAR, "liar"), parse(TEXT)
    Path("onnxgrad.toml").write_text(f'runtimes = ["{liar}"]\n')
    from onnxgrad.jobs.recipe import find

    with pytest.raises(InputError, match="starts the program"):
        find(None)
    with pytest.raises(NotProved, match="DIFFERENT on cpu"):
        onnxgrad.optimize(model, recipe="onnxgrad.toml")
    Path("onnxgrad.toml").write_text('runtimes = ["CPUExecutionProvider{}"]\n')
    assert find(None) is not None
    done = onnxgrad.optimize(model, recipe="onnxgrad.toml", report=True)
    assert [c.what for c in done.outcome.changes] == ["other runtime"]


def _other(folder: Path) -> str:
    """The Python of the environment variable, or of a new environment with an older onnxruntime."""
    if OTHER in os.environ:
        return os.environ[OTHER]
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    words = [str(python), "-m", "pip", "install", "-q", "onnxruntime==1.20.1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(
            f"no other onnxruntime: {OTHER} is not set, and pip fails: {done.stderr[-200:]}"
        )
    return str(python)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_version_of_onnxruntime(tmp_path: Path) -> None:
    """Packaged models compute the same there, and a model that is newer than it says why not."""
    python = _other(tmp_path)
    version = versions_in(Runtime.of(python))["onnxruntime"]
    assert version != versions()["onnxruntime"]
    for name in ("bert", "resnet18", "lstmcell", "llama"):
        report = onnxgrad.verify(MODELS_DIR / f"{name}.onnx", against=python)
        assert report.ok and f"onnxruntime {version}" in report.summary, (name, report.summary)
    newer = parse(TEXT)
    newer.ir_version = 13
    report = onnxgrad.verify(newer, against=python)
    assert report.verdict == "different" and "IR version" in report.summary
