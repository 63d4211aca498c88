"""Runs the main commands on files that onnxruntime.quantization makes of models/.

    python scripts/sweep_quantized.py [MODEL ...] [--kinds LIST] [--jobs LIST] [--write]

Each model is optimised and quantised in eleven ways: static QDQ (8 bits, per channel, 16-bit
activations, 4-bit weights), QOperator, dynamic, and MatMul with blocks of 4 bits. Each file is
optimised (without loss of an integer kernel of onnxruntime), legalized (proved), differentiated
straight through, converted to other opsets and to float16.
A gradient must run, without NaN, and not be zero. Prints each outcome and the counts (--write: to
results/quantized.md, after every model). The exit code is 1 if a result is different, or if a
failure is not a refusal in one line.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.verify import feeds_for, run  # noqa: E402
from scripts.records import write_record  # noqa: E402

MODELS = ("resnet18", "bert", "gpt2", "vit", "yolox", "lstm_script")
OPSETS = (13, 17, 21, 23)
BLOCKS_SINCE = 21  # DequantizeLinear by blocks
_QDQ, _OPERATORS = QuantFormat.QDQ, QuantFormat.QOperator
_U8, _S8, _U16, _S4 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16, QuantType.QInt4
STATIC: dict[str, dict[str, Any]] = {
    "qdq": {"quant_format": _QDQ, "activation_type": _U8, "weight_type": _S8},
    "qdq channels": {"quant_format": _QDQ, "activation_type": _S8, "per_channel": True},
    "qdq 16": {"quant_format": _QDQ, "activation_type": _U16, "per_channel": True},
    "qdq 4": {"quant_format": _QDQ, "activation_type": _U8, "weight_type": _S4},
    "operators": {"quant_format": _OPERATORS, "activation_type": _U8, "weight_type": _S8},
    "operators channels": {
        "quant_format": _OPERATORS,
        "activation_type": _U8,
        "weight_type": _U8,
        "per_channel": True,
    },
}
DYNAMIC: dict[str, dict[str, Any]] = {
    "dynamic": {"weight_type": _S8},
    "dynamic channels": {"weight_type": _U8, "per_channel": True},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "blocks": {"is_symmetric": True, "quant_format": _OPERATORS},
    "blocks with zeros": {"is_symmetric": False, "quant_format": _OPERATORS},
    "blocks qdq": {"is_symmetric": True, "quant_format": _QDQ},
}


class Feeds(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    """Returns two sets of generated inputs."""

    def __init__(self, model: ModelProto) -> None:
        self.left = iter([feeds_for(model, seed=seed) for seed in range(2)])

    def get_next(self) -> Any:
        return next(self.left, None)


def quantised(model: ModelProto, kind: str, folder: Path) -> ModelProto:
    """Returns the model as onnxruntime.quantization writes it."""
    given, made = folder / "given.onnx", folder / "made.onnx"
    onnx.save(model, given)
    if kind in STATIC:
        quantize_static(given, made, Feeds(model), **STATIC[kind])
    elif kind in DYNAMIC:
        quantize_dynamic(given, made, **DYNAMIC[kind])
    else:
        version = next(o.version for o in model.opset_import if not o.domain)
        if BLOCKS[kind]["quant_format"] is _QDQ and version < BLOCKS_SINCE:
            model = onnxgrad.convert_opset(model, BLOCKS_SINCE, verify=False)
        work = MatMulNBitsQuantizer(model, block_size=16, **BLOCKS[kind])
        work.process()
        work.model.save_model_to_file(str(made), False)
    return onnx.load(made)


def optimized(model: ModelProto) -> str:
    made = onnxgrad.optimize(model, verify=False)
    report = onnxgrad.verify(model, made)
    lost = [note for note in report.notes if "integer kernel" in note]
    return f"WRONG: {lost[0]}" if lost else "right" if report.ok else f"not proved: {report}"


def legalized(model: ModelProto) -> str:
    onnxgrad.optimize(model, passes="legalize")
    return "right"


def differentiated(model: ModelProto) -> str:
    legal = onnxgrad.optimize(model, passes="legalize", verify=False)
    target = legal.graph.output[0].name
    graph = onnxgrad.gradient(legal, "params", target, adjoint="input", ste=True)
    found = run(graph, feeds_for(graph, seed=0))
    gradients = {n: v for n, v in found.items() if n.endswith("_grad")}
    wrong = [n for n, v in gradients.items() if not np.isfinite(v).all() or not v.any()]
    return f"WRONG: zero or not finite: {wrong[0]}" if wrong else "right"


def converted(to: int) -> Callable[[ModelProto], str]:
    def job(model: ModelProto) -> str:
        onnxgrad.convert_opset(model, to)
        return "right"

    return job


def halved(model: ModelProto) -> str:
    onnxgrad.float16(model, keep=["auto"])
    return "right"


JOBS: dict[str, Callable[[ModelProto], str]] = {
    "optimize": optimized,
    "legalize": legalized,
    "grad": differentiated,
    "float16": halved,
    **{f"opset {to}": converted(to) for to in OPSETS},
}


def verdict(job: Callable[[ModelProto], str], model: ModelProto) -> str:
    """Returns the outcome: right, refused (bad input, an unknown form), not proved, or WRONG."""
    try:
        return job(model)
    except onnxgrad.InputError as error:
        return f"refused: {str(error)[:150]}"
    except onnxgrad.OnnxgradError as error:
        different = "DIFFERENT" in str(error) or error.exit_code != 1
        return f"{'WRONG' if different else 'not proved'}: {str(error)[:200]}"


def files(names: list[str], kinds: list[str]) -> Iterator[tuple[str, str, ModelProto]]:
    for name in names:
        model = onnxgrad.optimize(ROOT / "models" / f"{name}.onnx", verify=False)
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                yield name, kind, quantised(model, kind, Path(folder))


def main() -> int:
    """Returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", default=",".join([*STATIC, *DYNAMIC, *BLOCKS]))
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--write", action="store_true", help="write results/quantized.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    kinds, jobs = given.kinds.split(","), given.jobs.split(",")
    counts: Counter[tuple[str, str, str]] = Counter()
    texts = dict[str, None]()
    for name in given.model:
        for _, kind, model in files([name], kinds):
            for job in jobs:
                found = verdict(JOBS[job], model)
                counts[kind, job, found.partition(":")[0]] += 1
                if found != "right":
                    print(f"{name} | {kind} | {job} | {found}", flush=True)
                    texts[f"- {name}, {kind}, {job}: {found}"] = None
        if given.write:
            done = given.model[: given.model.index(name) + 1]
            write_record("quantized", [*table(counts, kinds, jobs, done), "", *texts])
    print(dict(Counter({v: sum(n for (*_, w), n in counts.items() if w == v) for *_, v in counts})))
    return 1 if any(verdict == "WRONG" for *_, verdict in counts) else 0


def table(
    counts: Counter[tuple[str, str, str]], kinds: list[str], jobs: list[str], models: list[str]
) -> list[str]:
    """Returns how many files of each kind each job handles, and the verdicts of the others."""
    rows = [f"| kind | {' | '.join(jobs)} |", "|---" * (len(jobs) + 1) + "|"]
    for kind in kinds:
        cells = []
        for job in jobs:
            found = {v: n for (k, j, v), n in counts.items() if (k, j) == (kind, job)}
            cells.append(", ".join(f"{n} {v}" for v, n in sorted(found.items(), reverse=True)))
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    totals = Counter[str]()
    for (*_, verdict), n in counts.items():
        totals[verdict] += n
    total = ", ".join(f"{n} {verdict}" for verdict, n in totals.most_common())
    return [f"Files of {', '.join(models)} ({total}).", "", *rows]


if __name__ == "__main__":
    sys.exit(main())
