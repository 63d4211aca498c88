"""The file of decisions: another run has the same bytes by it, another model none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto
from onnx.external_data_helper import convert_model_to_external_data

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.tuning.measure import Tuned, tune
from onnxgrad.jobs.tuning.record import digest, read, record, replayed, write
from onnxgrad.passes.pipeline import Pipeline
from tests.jobs.tuning.test_choices import branches
from tests.jobs.tuning.test_measure import Counting

MEASURING = Counting({"threads": 1, "dims": {"N": 2}}, 1e6)


def decided() -> tuple[Tuned, dict[str, Any]]:
    found = tune(branches(), Pipeline.of(), MEASURING)
    return found, record(branches(), Pipeline.of(), MEASURING, found)


def optimized(pipeline: Pipeline) -> ModelProto:
    program = load(branches())
    pipeline.run(program)
    return to_proto(program)


def test_replayed_to_the_same_bytes(tmp_path: Path) -> None:
    found, data = decided()
    file = tmp_path / "onnxgrad.tune.json"
    write(file, data)
    again = replayed(branches(), Pipeline.of(), read(file), str(file))
    assert optimized(again.pipeline) == optimized(found.pipeline) != optimized(Pipeline.of())
    assert again.decisions == found.decisions


def test_what_the_file_says() -> None:
    _, data = decided()
    assert data["provider"] == "cpu" and data["threads"] == 1 and data["dims"] == {"N": 2}
    assert set(data["versions"]) == {"onnxgrad", "onnx", "onnxruntime"}
    assert data["total"]["ratio"] < 1 and len(data["model"]) == 64
    assert json.loads(json.dumps(data)) == data


def test_another_model_is_refused() -> None:
    _, data = decided()
    other = branches()
    other.graph.initializer[0].raw_data = bytes(len(other.graph.initializer[0].raw_data))
    with pytest.raises(InputError, match=r"^here: these decisions are another model's"):
        replayed(other, Pipeline.of(), data, "here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"versions": {"onnxgrad": "0.0.0"}}, r"of onnxgrad 0\.0\.0"),
        ({"versions": None}, "of onnxgrad None"),
        ({"passes": ["remove-noops"]}, "other passes"),
        ({"decisions": [{"choice": "with magic", "kept": True}]}, "no choice 'with magic'"),
    ],
)
def test_decisions_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    _, data = decided()
    with pytest.raises(InputError, match=words):
        replayed(branches(), Pipeline.of(), {**data, **change}, "here")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nan", '{"format": 1, "decisions": [3]}', "[" * 100000]
)
def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.json"):
        read(file)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "y.json")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "no" / "x.json", {})


def test_weights_outside_belong_to_the_model(tmp_path: Path) -> None:
    found = []
    for value in (1, 2):
        model = branches()
        tensor = model.graph.initializer[0]
        tensor.raw_data = bytes([value]) * len(tensor.raw_data)
        convert_model_to_external_data(model, location=f"w{value}", size_threshold=0)
        onnx.save(model, tmp_path / f"{value}.onnx")
        onnx.save(model, tmp_path / f"{value}.onnx")
        proto = onnx.load(tmp_path / f"{value}.onnx", load_external_data=False)
        for t in proto.graph.initializer:
            t.external_data[0].value = "weights"
        (tmp_path / f"w{value}").rename(tmp_path / "weights")
        onnx.save(proto, tmp_path / "m.onnx")
        found.append(digest(tmp_path / "m.onnx"))
        (tmp_path / "weights").unlink()
    assert found[0] != found[1]
