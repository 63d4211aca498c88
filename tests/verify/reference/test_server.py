"""The compiled models of the float64 child: those whose runs are counted stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.server import References
from tests.helpers import parse

MODEL = parse("g (float[2] x) => (float[2] y) { y = Relu (x) }").SerializeToString()


def _run(references: References, key: str, count: object) -> Any:
    options = {
        "seconds": None,
        "jitter": 0.0,
        "seed": 0,
        "everywhere": False,
        "deployed": False,
        "count": count,
    }
    options |= {"steps": True, "rounded": None, "moved": None}
    return references.run(key, {"x": np.ones(2, np.float32)}, None, options)


def test_other_models_do_not_replace_those_whose_runs_are_counted() -> None:
    references = References()
    for key in ("original", "candidate"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, "proof") is not None
    for key in ("lookup", "table", "other"):
        references.open(lambda *_: [], key, MODEL, [])
        assert _run(references, key, None) is not None
    assert references.covered("original", "proof", "") and references.covered(
        "candidate", "proof", ""
    )
    assert _run(references, "lookup", None) is None
