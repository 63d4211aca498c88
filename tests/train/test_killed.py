"""A run that is killed at any moment, and started again, ends with the bytes of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import ROOT
from tests.train.common import examples, write_model


def command(folder: str) -> list[str]:
    words = "fit model.onnx --loss cross_entropy --data data.npz --epochs 60 --threads 1 --every 1"
    out = ["--folder", folder, "-o", f"{folder}.onnx", "--log", f"{folder}.jsonl"]
    return [sys.executable, "-m", "onnxgrad", *words.split(), *out]


def written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_twenty_moments(tmp_path: Path) -> None:
    write_model(tmp_path)
    np.savez(tmp_path / "data.npz", **examples(500))
    place: Any = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT), "PATH": ""}}
    subprocess.run(command("whole"), check=True, capture_output=True, **place)
    moments, checkpoint = random.Random(0), tmp_path / "broken" / "checkpoint.safetensors"
    for _ in range(20):
        before = written(checkpoint)
        child = subprocess.Popen(command("broken"), stdout=subprocess.DEVNULL, **place)
        while written(checkpoint) == before:  # it has begun to train
            assert child.poll() is None
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        assert child.poll() is None, "it ended before it was killed: nothing is tested"
        child.send_signal(signal.SIGKILL)
        child.wait()
    for part in (tmp_path / "broken").glob(".*.part"):
        os.utime(
            part, (0, 0)
        )  # an empty one may be somebody's who has not locked it yet, for ten seconds
    subprocess.run(command("broken"), check=True, capture_output=True, **place)
    whole = (tmp_path / "whole" / "checkpoint.safetensors").read_bytes()
    assert checkpoint.read_bytes() == whole
    assert (tmp_path / "broken.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    # no line is lost, and none is there twice
    assert (tmp_path / "broken.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    # what a kill in the middle of writing left went with the next save
    assert list((tmp_path / "broken").iterdir()) == [checkpoint]
