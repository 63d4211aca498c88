"""The same input gives the same bytes, whatever the process: nothing depends on the order of a set or on addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from onnxgrad.passes.presets import PRESETS
from tests.helpers import MODELS_DIR, ROOT

ALL = sorted(str(p.relative_to(MODELS_DIR)) for p in MODELS_DIR.rglob("*.onnx"))
# one process: digests of what every job gives
WORK = """
import hashlib, json, sys, warnings
import onnxgrad
warnings.simplefilter("ignore")
found = {}
for name, what in json.loads(sys.argv[1]):
    program = onnxgrad.load(name)
    if what == "grad":
        made = onnxgrad.gradient(name, "params", program.main.outputs[0].name, adjoint="input")
    elif what == "checkpointed":
        made = onnxgrad.gradient(name, "params", program.main.outputs[0].name, adjoint="input", checkpoint="auto")
    else:
        made = onnxgrad.optimize(name, preset=what, merge="always", verify=False)
    data = made.SerializeToString(deterministic=True)
    found[f"{name} {what}"] = [len(made.graph.node), hashlib.sha256(data).hexdigest()]
print(json.dumps(found))
"""


def outcomes(jobs: list[tuple[str, str]]) -> list[dict[str, list[object]]]:
    """What three processes with different hash seeds give."""
    words = json.dumps([[str(MODELS_DIR / name), what] for name, what in jobs])
    environments = [
        {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)} for seed in ("1", "2", "77")
    ]
    # different addresses too: one process has allocated something else before
    codes = [WORK, f"kept = [object() for _ in range(100003)]\n{WORK}", WORK]
    found = []
    for code, environment in zip(codes, environments):
        done = subprocess.run(
            [sys.executable, "-c", code, words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=550,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout))
    return found


def check(jobs: list[tuple[str, str]]) -> None:
    first, *others = outcomes(jobs)
    assert len(first) == len(jobs)
    for other in others:
        assert {
            name: (first[name], other[name]) for name in first if first[name] != other[name]
        } == {}


def test_a_few() -> None:
    check(
        [
            ("training/unet.onnx", "grad"),
            ("training/mlp.onnx", "checkpointed"),
            ("lstmcell.onnx", "default"),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_model(name: str) -> None:
    """`optimize` with each preset, and `grad`."""
    check([*((name, preset) for preset in PRESETS), (name, "grad")])
