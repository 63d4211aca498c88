"""The numbers of `help numbers` are those of the records in scripts/results: each sentence is made here from them and looked up."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxgrad
from scripts.records import RESULTS, column
from tests.helpers import ROOT

PAGE = " ".join((ROOT / "onnxgrad/help/numbers.md").read_text(encoding="utf-8").split())
NAMES = {
    "mlp": "MLP", "bert": "BERT", "vit": "ViT", "llama": "Llama", "gpt2": "GPT-2", "resnet18": "ResNet18",
    "convnext": "ConvNeXt", "unet": "a UNet", "mobilenet_v2": "MobileNetV2",
}  # fmt: skip


def record(name: str) -> str:
    return (RESULTS / name).read_text(encoding="utf-8")


def geometric_means(rows: list[Any]) -> tuple[dict[str, float], float]:
    """Of the CPU ratios by tool, over the models that it does not fail on; the worst of ours."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for timing in row["timings"]:
            found.setdefault(timing["name"], []).append(timing["cpu_ratio"]["median"])
    return {k: statistics.geometric_mean(v) for k, v in found.items()}, max(
        found["onnxgrad default"]
    )


def latency() -> Iterator[str]:
    of = {
        tool: column("latency_peers.md", tool)["mobilenet_v2.raw.onnx"]
        for tool in ("onnxgrad default", "onnxsim", "onnxslim", "onnxoptimizer", "onnxscript")
    }
    assert of["onnxslim"] == of["onnxoptimizer"]
    rows = json.loads(record("latency_peers.json"))["rows"]
    mean, worst = geometric_means(rows)
    yield f"Over {len(rows)} models the default preset takes {mean['onnxgrad default']:.3f}"
    yield f"none above {worst:.2f}"
    yield (
        f"onnxscript's optimizer {mean['onnxscript']:.3f}, onnxslim {mean['onnxslim']:.3f}, "
        f"onnxsim {mean['onnxsim']:.3f}, onnxoptimizer {mean['onnxoptimizer']:.3f}"
    )
    yield f"runs in {of['onnxgrad default']:.2f} of the time after `optimize`"
    yield f"onnxsim leaves it at {of['onnxsim']:.2f}, onnxslim and onnxoptimizer at {of['onnxslim']:.2f}"
    yield f"onnxscript reaches {of['onnxscript']:.2f}"


def merging() -> Iterator[str]:
    named = {
        "unet": "UNet",
        "t5": "T5",
        "whisper": "Whisper",
        "lstmcell": "LSTM cell",
        "clip": "CLIP",
    }
    named |= {"googlenet": "GoogLeNet", "inception_v3": "Inception v3", "yolox": "YOLOX-like"}
    file, ours, sim = (
        column("merged_products.md", c) | column("merged_products.md", c, table=1)
        for c in ("file", "onnxgrad", "onnxsim")
    )
    for name, count in file.items():
        if ours[name] < count:
            yield f"{ {**NAMES, **named}[name] } {count:.0f} → {ours[name]:.0f}"
    assert ours["gpt2"] == file["gpt2"]
    yield f"onnxsim reaches {sim['unet']:.0f} on the UNet, {sim['t5']:.0f} on T5 and {sim['whisper']:.0f} on Whisper"
    for tool in ("onnxslim", "onnxoptimizer", "onnxscript"):
        other = column("merged_products.md", tool) | column("merged_products.md", tool, table=1)
        assert other.keys() == sim.keys() and all(other[m] >= sim[m] for m in sim)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    best = ("unet", "bert", "llama")
    said = ", ".join(f"{ {**NAMES, **named}[m] } {file[m]:.0f} → {ours[m]:.0f}" for m in best)
    said = said.replace(", BERT", " products, BERT")
    unet, bert, llama = (f"{sim[m]:.0f}" for m in best)
    assert f"{said}. Next best: onnxsim with {unet}, {bert} and {llama}." in readme


def gradient_errors() -> Iterator[str]:
    ours, torch = (column("gradient_errors.md", name) for name in ("error", "PyTorch float32"))
    assert len(ours) == 11 == len(list((ROOT / "models/training").glob("*.onnx")))
    yield f"worst error {max(ours.values()):.0e} of the largest".replace("e-0", "e-")
    yield f"own float32 gradients is also {max(torch.values()):.0e}".replace("e-0", "e-")


def composites() -> Iterator[str]:
    raised, exported = (column("composites.md", name) for name in ("18 raised", "23 / 18"))
    of = {name: next(k for k in raised if k.startswith(name)) for name in ("BERT", "ViT", "Llama")}
    yield ", ".join(f"{name} {raised[key]:.2f}" for name, key in of.items())
    a, b, c = (f"{exported[key]:.2f}" for key in of.values())
    yield f"exported at opset 23 by PyTorch take {a}, {b} and {c}"


def optimising_time() -> Iterator[str]:
    text = record("bench_optimize.md")
    rows = [re.findall(r"\((\d+\.\d+)x\)", line) for line in text.splitlines() if ".onnx |" in line]
    sim, slim, _, script = (list(map(float, tool)) for tool in zip(*rows))
    assert min(slim) > 1 and min(script) > 1
    (growth,) = re.findall(r"of 100 000 nodes: [\d.]+ s \(([\d.]+)x\)", text)
    yield f"each of the {len(rows)} models measured"
    yield f"between {1 / max(sim):.2f} and {1 / min(sim):.1f} times onnxsim's"
    yield f"100 000 nodes take {float(growth):.0f} times as long as 10 000"


def exports() -> Iterator[str]:
    def most(name: str) -> str:
        counts = column("exports.md", name).values()
        return f"{min(counts):.0f} to {max(counts):.0f}"

    nodes = {name: most(name) for name in ("export", "opset 23", "onnxslim", "onnxsim")}
    yield f"with open sizes ({nodes['export']} nodes): `--target-opset 23` leaves {nodes['opset 23']} nodes"
    yield f"onnxslim {nodes['onnxslim']}, onnxsim {nodes['onnxsim']}"
    tools = ("opset 23", "optimize", "onnxslim", "onnxsim")
    mean = {tool: column("exports.md", tool, table=1)["geometric mean"] for tool in tools}
    rows = [
        r.split("|") for r in record("exports.md").splitlines() if re.match(r"\| \w+ \| [18] \|", r)
    ]
    assert len(rows) == 20
    yield f"run in {mean['opset 23']:.3f} of the export's time"
    yield f"none above {max(float(r[5]) for r in rows):.2f}), by `optimize` alone in {mean['optimize']:.3f}"
    yield f"by onnxslim in {mean['onnxslim']:.3f}, by onnxsim in {mean['onnxsim']:.3f}"


def commands() -> Iterator[str]:
    text = record("commands.md")
    found = re.findall(
        r"`(.+)` over the fastest peer: wall ([\d.]+) \(worst ([\d.]+)\), CPU ([\d.]+)", text
    )
    ((_, wall, worst, cpu), (_, bare, bare_worst, _)) = found
    count = len(column("commands.md", "onnxsim"))
    yield f"with its proof takes {wall} of the wall time of the fastest of onnxsim"
    yield f"(geometric mean of {count} models, worst {worst}, two cores), and {cpu} of its CPU time"
    yield f"`--no-verify` {bare} of the wall time (worst {bare_worst})"


def packaged() -> Iterator[str]:
    kept, newer = (column("packaged.md", name) for name in ("optimize", "opset 23"))
    mean = kept.pop("geometric mean")
    assert len(kept) == 10 and sum(r >= 0.98 for r in kept.values()) == 5
    yield f"as they ship, take {mean} of their time after `optimize` and {newer['geometric mean']} with"
    yield f"`--target-opset 23`, none above {max(*kept.values(), *newer.values()):.2f}"


def real_sizes() -> Iterator[str]:
    rows = [
        [c.strip() for c in line.split("|")]
        for line in record("real_sizes.md").splitlines()
        if re.match(r"\| \w+ \| \d+ \|", line)
    ]
    ratios = {"": [float(r[7]) for r in rows]}
    for by in ("dynamo", "script"):
        ratios[by] = [float(r[7]) for r in rows if r[3] == by]
    ratios["whole"] = [float(r[7]) for r in rows if r[1] not in ("roberta", "clip")]
    mean = {by: f"{statistics.geometric_mean(found):.3f}" for by, found in ratios.items()}
    yield f"take {mean['']} of the export's time with `--target-opset 23`"
    yield f"(geometric mean of {len(rows)}, none above {math.ceil(max(ratios['']) * 100) / 100})"
    yield f"{mean['dynamo']} through PyTorch's newer exporter, {mean['script']} through TorchScript"
    yield f"The six others take {mean['whole']}"
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"realistic sizes {1 - float(mean['whole']):.0%}".replace("%", " %") in readme


def tuned() -> Iterator[str]:
    mean, _ = geometric_means(json.loads(record("latency_tuned.json"))["rows"])
    yield f"take {mean['onnxgrad tuned']:.3f} at the opset that they have"
    newer = "onnxgrad tuned, opset 23"
    yield f"and {mean[newer]:.3f} where they may use opset 23"
    of = column("latency_tuned.md", newer)
    order = ("t5", "llama", "whisper", "vit", "bert")
    yield ", ".join(f"{name} {of[f'{name}.onnx']:.2f}" for name in order)


def gradient_time() -> Iterator[str]:
    over = column("training.md", "/ forward")
    order = ("mlp", "bert", "vit", "llama", "gpt2", "resnet18", "convnext", "unet")
    yield f"one thread: {', '.join(f'{NAMES[name]} {over[name]:.1f}' for name in order)}."
    eager = column("training.md", "2 threads: ratio")
    named = {**NAMES, "unet": "the UNet", "lstm": "two LSTM layers"}
    order = tuple(sorted(eager, key=eager.__getitem__))
    yield f"two threads: {', '.join(f'{named[name]} {eager[name]:.2f}' for name in order)}"
    one = column("training.md", "1 thread: ratio").values()
    yield f"with one thread {min(one):.2f} to {max(one):.2f}"
    compiled = column("training.md", "ratio")
    order = tuple(sorted(compiled, key=compiled.__getitem__))
    yield f"torch.compile: {', '.join(f'{named[name]} {compiled[name]:.2f}' for name in order)}."


def curves() -> Iterator[str]:
    rows = record("training_curves.md").splitlines()
    agree, differ = (sum(f"| {answer} |" in row for row in rows) for answer in ("yes", "NO"))
    yield f"in {agree} of {agree + differ} runs"


def steps() -> Iterator[str]:
    default, fused = (column("steps.md", f"blocks/{name}") for name in ("PyTorch", "fused"))
    order = ("mlp", "bert", "gpt2", "llama", "vit", "resnet18")
    yield ", ".join(f"{NAMES[m]} {default[m]:.2f} and {fused[m]:.2f}" for m in order)
    two = column("steps.md", "blocks/PyTorch", table=1).values()
    yield f"with two threads {min(two):.2f} to {max(two):.2f} of the default"
    graph = column("steps.md", "graph/PyTorch").values()
    yield f"The portable graph takes {min(graph):.2f} to {max(graph):.2f} of it"
    memory = column("steps.md", "blocks/PyTorch", table=2)
    assert min(memory, key=memory.__getitem__) == "gpt2_deep"
    assert max(memory, key=memory.__getitem__) == "vit"
    yield f"{memory['gpt2_deep']:.2f} of PyTorch's for a 12-layer GPT-2 to {memory['vit']:.2f} for a ViT"
    (share,) = re.findall(r"gpt2_deep takes ([\d.]+) of the plain step", record("steps.md"))
    yield f'`checkpoint="auto"` {share} of the plain step'


def checkpointing() -> Iterator[str]:
    ratio, time = (column("checkpoint.md", name) for name in ("ratio", "time ratio"))
    deep, gpt2 = ratio
    yield f"64 tanh layers {ratio[deep]:.2f} at {time[deep]:.2f} of the time"
    yield f"a 12-layer GPT-2 {ratio[gpt2]:.2f} at {time[gpt2]:.2f}"


def building() -> Iterator[str]:
    text = record("bench_gradient.md")
    ((small, large),) = re.findall(r"1 000 nodes: ([\d.]+) s .*10 000 nodes: ([\d.]+) s", text)
    yield f"1 000 nodes is built in {float(small):.2f} s, of 10 000 in {float(large):.1f} s"
    forward, gradient = (
        column("bench_gradient.md", f"{n} nodes")["mlp"] for n in ("forward", "gradient")
    )
    yield f"That of the MLP has {gradient:.0f} nodes, where the model has {forward:.0f}"


@pytest.mark.parametrize(
    "sentences",
    [
        latency,
        merging,
        gradient_errors,
        tuned,
        composites,
        exports,
        commands,
        real_sizes,
        packaged,
        optimising_time,
        gradient_time,
        curves,
        steps,
        checkpointing,
        building,
    ],
)
def test_readme_says_what_the_records_say(sentences: Callable[[], Iterator[str]]) -> None:
    said = list(sentences())
    assert said and [s for s in said if s not in PAGE] == []


def test_the_records_of_the_mlp_are_those_of_the_model() -> None:
    model = onnx.load(ROOT / "models" / "training" / "mlp.onnx")
    gradient = onnxgrad.gradient(model, "params", "loss")
    for name in ("bench_gradient.md", "training.md"):
        assert column(name, "forward nodes")["mlp"] == len(model.graph.node)
        assert column(name, "gradient nodes")["mlp"] == len(gradient.graph.node)


def test_the_reader_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.records.RESULTS", tmp_path)
    table = "| model | a | ms |\n|---|---|---|\n| x | 1,024 (2x) | |\n| x | 7 | 3 |\n\n"
    (tmp_path / "r.md").write_text(f"text\n\n{table}{table.replace('7', '8')}", encoding="utf-8")
    assert column("r.md", "a") == {"x": 1024.0} and column("r.md", "ms") == {"x": 3.0}
    assert column("r.md", "a", table=1) == {"x": 1024.0}
