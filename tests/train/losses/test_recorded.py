"""What torch.nn of PyTorch 2.13 gives for a few numbers: losses by their text, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.train.losses import LOSSES, TripletMargin, parse_loss
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.losses.common import found, with_loss

Z = [[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]]
T = [[0.25, -1.5, 0.0], [2.0, 0.0, -1.0]]
P = [[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]]
LOG_P = np.log([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
SEQUENCE = [[[1.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 2.0, 1.0]]]
STEPS = [[[0.5, -1.0, 2.0]], [[1.5, 0.0, -0.5]], [[0.0, 0.3, 0.1]]]
OF_Z: dict[str, Any] = {"z": Z, "labels": [2, 0]}
ONTO_T: dict[str, Any] = {"z": Z, "target": T}


def ctc(*labels: int) -> dict[str, Any]:
    return {"z": STEPS, "labels": [labels], "target_lengths": [2]}


RECORDED: list[tuple[str, dict[str, Any], float, list[float]]] = [
    ("cross_entropy", OF_Z, 0.273833504443,
     [0.08764519607, 0.01955628664, -0.1072014827, -0.1319376378, 0.08212581381, 0.04981182403]),
    ("cross_entropy{weight=[1,2,0.5],label_smoothing=0.1,ignore_index=1}", OF_Z, 0.554358694804,
     [0.04399859259, -0.02966858343, -0.01433000916, -0.1232932424, 0.06688165872, 0.05641158369]),
    ("cross_entropy{weight=[1,2,0.5],label_smoothing=0.1,ignore_index=0}", OF_Z, 0.773486136211,
     [0.1319957778, -0.08900575029, -0.04299002747, 0.0, 0.0, 0.0]),
    ("cross_entropy{probabilities=true,label_smoothing=0.2,weight=[1,2,0.5]}", {"z": Z, "labels": P}, 2.83366313208,
     [-0.01926082288, -0.2856762523, 0.3049370752, 0.641447664, -0.7161026747, 0.07465501072]),
    ("sequence_cross_entropy", {"z": SEQUENCE, "labels": [[0, 2, 1]]}, 1.6828130262,
     [0.3326204779, 0.1223642355, -0.4549847134, 0.1918258656, -0.3081741344, 0.1163482688, 0.0, 0.0, 0.0]),
    ("bce_with_logits{pos_weight=[1,2,0.5],weight=[2,1,1]}", {"z": Z, "labels": P}, 1.51896467861,
     [0.1408197771, -0.0417293587, 0.06843296808, 0.2725248254, -0.1666666667, 0.0629234448]),
    ("mse", ONTO_T, 0.802083333333, [0.08333333333, 0.1666666667, 0.6666666667, -0.1666666667, 0.0, 0.1666666667]),
    ("l1{reduction=sum}", ONTO_T, 3.75, [1.0, 1.0, 1.0, -1.0, 0.0, 1.0]),
    ("huber{delta=0.5}", ONTO_T, 0.213541666667,
     [0.04166666667, 0.08333333333, 0.08333333333, -0.08333333333, 0.0, 0.08333333333]),
    ("smooth_l1{beta=0.5}", ONTO_T, 0.427083333333,
     [0.08333333333, 0.1666666667, 0.1666666667, -0.1666666667, 0.0, 0.1666666667]),
    ("kl_div{reduction=batchmean}", {"z": LOG_P, "target": P}, 0.64800282728, [-0.1, -0.15, -0.25, 0.0, -0.5, 0.0]),
    ("kl_div{log_target=true}", {"z": LOG_P, "target": T}, 4.75103177611,
     [-0.2140042361, -0.03718836002, -0.1666666667, -1.23150935, -0.1666666667, -0.0613132402]),
    ("cosine", ONTO_T, 0.271839052086,
     [-0.01366659054, 0.1708323817, 0.08883283851, 0.01414213562, 0.0, 0.04242640687]),
    ("cosine_embedding{margin=0.2}", {"z": Z, "other": T, "labels": [1, -1]}, 0.661788545747,
     [-0.01366659054, 0.1708323817, 0.08883283851, -0.01414213562, 0.0, -0.04242640687]),
    ("ctc{input_lengths=none}", ctc(1, 1), 2.24374903487,
     [0.08764519607, -0.4804437134, 0.3927985173, -0.1319376378, 0.08212581381, 0.04981182403,
      0.1447165552, -0.3046530834, 0.1599365282]),
    ("ctc{input_lengths=none,blank=2}", ctc(1, 0), 1.4247146181,
     [0.08764519607, -0.1578030312, 0.07015783513, 0.2165092824, -0.2565782021, 0.04006891964,
      -0.2757212321, 0.1953469166, 0.0803743155]),
]  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("opset", [13, 18, 26])
@pytest.mark.parametrize(
    ("text", "feeds", "loss", "gradient"), RECORDED, ids=[row[0] for row in RECORDED]
)
def test_the_numbers_of_pytorch(
    text: str, feeds: dict[str, Any], loss: float, gradient: list[float], opset: int
) -> None:
    labels = {k: np.array(v) for k, v in feeds.items() if k != "z"}
    value, gradients = found(parse_loss(text), {"z": feeds["z"]}, labels, opset=opset)
    np.testing.assert_allclose(value, loss, rtol=1e-11)
    np.testing.assert_allclose(gradients["z"].reshape(-1), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(TensorProto.FLOAT, 5e-7), (TensorProto.FLOAT16, 5e-4), (TensorProto.BFLOAT16, 5e-3)],
)
@pytest.mark.parametrize(
    ("text", "feeds", "loss", "gradient"), RECORDED, ids=[row[0] for row in RECORDED]
)
def test_in_onnxruntime_in_each_precision(
    text: str,
    feeds: dict[str, Any],
    loss: float,
    gradient: list[float],
    dtype: int,
    tolerance: float,
) -> None:
    arrays = {k: np.array(v) for k, v in feeds.items()}
    feeds = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in arrays.items()}
    sizes = ",".join(f"d{i}" for i in range(feeds["z"].ndim))
    name = {
        TensorProto.FLOAT: "float",
        TensorProto.FLOAT16: "float16",
        TensorProto.BFLOAT16: "bfloat16",
    }[dtype]
    model = parse(f"g (float[{sizes}] z) => ({name}[{sizes}] y) {{ y = Cast <to = {dtype}> (z) }}")
    values = run(onnxgrad.gradient(with_loss(model, parse_loss(text)), "z"), feeds)
    value, found_gradient = values.values()
    assert value.dtype == found_gradient.dtype == np.float32
    np.testing.assert_allclose(value, loss, rtol=tolerance)
    np.testing.assert_allclose(found_gradient.reshape(-1), gradient, atol=tolerance)


def test_triplets() -> None:
    values = {"anchor": Z, "positive": T, "negative": P}
    value, gradients = found(TripletMargin(margin=2.0, swap=True), values, {})
    np.testing.assert_allclose(value, 1.5220567113189265, rtol=1e-12)
    expected = {
        "anchor": [0.0602, 0.1204, 0.4815, -0.7544, 0.2673, 0.4872],
        "positive": [-0.073571, 0.36120, -0.34777, 0.35355, 0.0, -0.35355],
        "negative": [0.0134, -0.4816, -0.1338, 0.4009, -0.2673, -0.1336],
    }
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name].reshape(-1), gradient, atol=6e-5)


def test_each_loss_is_here_or_no_torch_nn() -> None:
    here = {row[0].partition("{")[0] for row in RECORDED}
    penalties = {"l1_penalty", "l2_penalty", "proximal_penalty"}
    assert set(LOSSES) - here == {"triplet_margin", "output", *penalties}
