from __future__ import annotations

import json

import onnx

from onnxgrad.verify.running.installed import doctor_report
from onnxgrad.verify.running.session import versions
from onnxgrad.vocabulary import PROVIDERS


def test_the_report_is_json_and_true() -> None:
    report = doctor_report()
    assert json.loads(json.dumps(report)) == report
    assert report["packages"]["onnx"] == onnx.__version__
    assert report["onnxruntime"] == versions()["onnxruntime"]
    assert report["max_ir"] >= 10 and report["max_opset"] >= 20
    assert set(report["providers"]) == set(PROVIDERS)
    assert report["providers"]["cpu"] == {"works": True, "why": ""}
    cuda = report["providers"]["cuda"]
    assert cuda["works"] or "onnxruntime-gpu[cuda,cudnn]" in cuda["why"]
