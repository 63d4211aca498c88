"""The examples' numbers are what they say they are, and each runs as a script."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import Trainer, train, training_step
from onnxgrad.train.export import changed_weights
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from scripts.examples import distill, fit_ode, forces, gauss_newton, lora, own_losses
from scripts.fetch_models import FetchError, fetch
from tests.helpers import ROOT

FOLDER = ROOT / "scripts" / "examples"
QUICK = {
    "distill": ["distilled.onnx"],
    "fit_ode": ["fit.png", "pendulum.onnx"],
    "forces": ["forces.onnx", "relaxed.xyz"],
    "gauss_newton": None,
    "own_losses": None,
}
# of a model that comes inside a Python package, and with matplotlib
OF_A_PACKAGE = {
    "adversarial": ["adversarial.png"],
    "finetune_head": ["fonts.onnx", "loss.png"],
    "lora_reader": ["adapters.safetensors", "merged.onnx"],
    "saliency": ["saliency.png"],
}


def fetched(name: str) -> str:
    pytest.importorskip("matplotlib")
    try:
        return str(fetch(name))
    except FetchError as error:
        pytest.skip(str(error))


@pytest.fixture
def classifier() -> str:
    return fetched("rapidocr_cls")


def run_script(name: str, *arguments: str) -> str:
    """What it prints as a process of its own."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*QUICK, *OF_A_PACKAGE, "lora", "swing_up", "federated"])
def test_it_is_short_and_says_how_it_is_called(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert f"    python scripts/examples/{name}.py" in text.split('"""')[1]


def loss_of(text: str, loss: object, rng: np.random.Generator, shapes: dict[str, Any]) -> Any:
    """A step of a model with random weights, and its loss as a function of a batch."""
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        value = rng.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    step = training_step(model, loss)
    return model, lambda batch: Trainer(step, threads=1).evaluate(batch)["loss"]


@pytest.mark.slow
def test_own_losses_are_their_formulas() -> None:
    rng = np.random.default_rng(1)
    data, shapes = (
        own_losses.discs(5, rng),
        {"w1": (8, 1, 5, 5), "b1": 8, "w2": (1, 8, 5, 5), "b2": 1},
    )
    t = data["mask"].astype(np.float64)
    for loss in (own_losses.dice, own_losses.focal):
        model, found = loss_of(own_losses.DISCS, loss, rng, shapes)
        z = run(model, {"x": data["x"]})["logits"].astype(np.float64)
        p = 1 / (1 + np.exp(-z))
        both, sizes = (p * t).sum((1, 2, 3)), (p + t).sum((1, 2, 3))
        right = np.where(t == 1, p, 1 - p)
        each = -np.where(t == 1, 0.25, 0.75) * (1 - right) ** 2 * np.log(right)
        expected = (1 - (2 * both + 1) / (sizes + 1)) if loss is own_losses.dice else each
        assert found(data) == pytest.approx(expected.mean(), rel=1e-5)
    x, y = rng.normal(size=(2, 9, 6)).astype(np.float32)
    same = np.float32(np.arange(9) % 2)
    model, found = loss_of(
        own_losses.PAIRS, own_losses.contrastive, rng, {"w1": (6, 16), "w2": (16, 2)}
    )
    ends = run(model, {"x": x, "y": y})
    d = np.linalg.norm(ends["a"].astype(np.float64) - ends["b"], axis=1)
    expected = np.where(same == 1, d**2, np.maximum(2 - d, 0) ** 2).mean()
    assert found({"x": x, "y": y, "same": same}) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_own_losses_train() -> None:
    found = own_losses.main()
    assert all(after["loss"] < 0.75 * before for before, after in found.values())
    assert min(found[name][1]["iou{threshold=0,target=mask}"] for name in ("dice", "focal")) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_it_runs_and_writes_into_the_folder_only(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    before = set(FOLDER.iterdir())
    files = QUICK[name]
    assert run_script(name, *(["-o", str(tmp_path)] if files else []))
    assert sorted(p.name for p in tmp_path.iterdir()) == (files or [])
    assert {p for p in FOLDER.iterdir() if p.name != "__pycache__"} <= before
    for model in tmp_path.glob("*.onnx"):
        onnx.checker.check_model(onnx.load(model), full_check=True)


def test_forces_are_the_slope_of_the_energy_and_lead_to_its_known_minimum() -> None:
    energy_and_forces, shaken, relaxed, energies = forces.main()
    i, j = np.triu_indices(13, 1)
    r6 = ((shaken[i] - shaken[j]) ** 2).sum(1) ** 3
    assert energies[0] == pytest.approx(float((4 / r6**2 - 4 / r6).sum()), rel=1e-12)
    h, found = 1e-5, energy_and_forces(shaken)[1]
    for atom, axis in [(0, 0), (5, 1), (12, 2)]:
        step = np.zeros((13, 3))
        step[atom, axis] = h
        slope = (energy_and_forces(shaken + step)[0] - energy_and_forces(shaken - step)[0]) / 2 / h
        assert found[atom, axis] == pytest.approx(-slope, rel=1e-6)
    assert np.abs(found.sum(0)).max() < 1e-9 * np.abs(found).max()
    assert energies[-1] == pytest.approx(-44.326801, abs=1e-6)
    assert np.abs(energy_and_forces(relaxed)[1]).max() < 1e-8


def test_gauss_newton_recovers_the_parameters_and_the_products_are_those_of_the_matrices() -> None:
    p, losses, product, normal = gauss_newton.main()
    assert np.abs(p - gauss_newton.TRUE).max() < 1e-8
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-20 and len(losses) < 12
    # away from the solution H differs from J'J, and both are what the formulas say
    q, t = np.array([1.5, 0.5, 4.0]), np.linspace(0, 3, 60)
    a, b, c = q
    e, cos, sin = np.exp(-b * t), np.cos(c * t), np.sin(c * t)
    jacobian = np.stack([e * cos, -t * a * e * cos, -t * a * e * sin], 1)
    r = a * e * cos - 2 * np.exp(-0.3 * t) * np.cos(5 * t)
    ab, ac = -t * e * cos, -t * e * sin
    bb, bc, cc = a * t * t * e * cos, a * t * t * e * sin, -a * t * t * e * cos
    second = np.array([[0 * t, ab, ac], [ab, bb, bc], [ac, bc, cc]]) @ r
    v = np.array([0.3, -1.0, 2.0])
    assert np.allclose(normal(v, q), jacobian.T @ jacobian @ v, rtol=1e-10)
    expected = (jacobian.T @ jacobian + second) @ v
    assert np.allclose(product("Hv", "p_hvp", p=q, p_tangent=v), expected, rtol=1e-10)
    assert not np.allclose(expected, normal(v, q), rtol=1e-2)


@pytest.mark.slow
def test_the_pendulum_is_found_again() -> None:
    found, losses = fit_ode.main()
    assert all(abs(found[name] - true) < 1e-3 for name, true in fit_ode.TRUE.items())
    assert losses[-1] < 1.1e-6 < 1e-2 < losses[0]  # the noise has a variance of 1e-6


@pytest.mark.slow
def test_the_student_answers_as_the_teacher_and_the_teacher_learns_nothing() -> None:
    step, result, losses, right = distill.main()
    assert losses[-1] < 1e-3 * losses[0]
    assert right["teacher"] > 0.99 and right["student"] > right["teacher"] - 0.01
    # with the teacher's answers as data, it is KLDiv
    x = distill.spirals(50, seed=3)[0]
    z = run(result, {"x": x})["teacher"] / 2
    answers = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    kl = 4.0 * train.KLDiv("log_p", reduction="batchmean")
    apart = Trainer(training_step(result, kl, wrt="student_*"))
    here = Trainer(training_step(result, distill.divergence, wrt="student_*"))
    found = apart.step({"x": x, "target": answers})
    assert found == pytest.approx(here.step({"x": x}), rel=1e-3, abs=1e-7)
    trained = {fed.name for fed in step.manifest.of_role("parameter")}
    assert trained == {"student_w1", "student_b1", "student_w2"}


@pytest.mark.slow
def test_small_changes_deceive_where_noise_of_their_size_does_not(
    classifier: str, tmp_path: Path
) -> None:
    adversarial = importlib.import_module("scripts.examples.adversarial")
    pictures, found = adversarial.main(classifier, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == OF_A_PACKAGE["adversarial"]
    assert found["as it is"] < 0.1 and found["with noise"] < 0.1
    assert found["FGSM"] > 100 * found["with noise"] and found["PGD"] > 0.99
    for x in pictures.values():
        assert np.abs(x - pictures["as it is"]).max() <= adversarial.DISTANCE + 1e-6
        assert np.abs(x).max() <= 1


@pytest.mark.slow
def test_the_shares_of_the_pixels_add_up_to_the_change_of_the_score(
    classifier: str, tmp_path: Path
) -> None:
    saliency = importlib.import_module("scripts.examples.saliency")
    x, shares, changed, added = saliency.main(classifier, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == OF_A_PACKAGE["saliency"]
    assert added == pytest.approx(changed, rel=0.02)
    assert not shares[x == 1].any()  # the page itself has no share


@pytest.mark.slow
def test_the_head_learns_and_nothing_else_of_the_file_changes(
    classifier: str, tmp_path: Path
) -> None:
    finetune_head = importlib.import_module("scripts.examples.finetune_head")
    _, losses, before, after = finetune_head.main(classifier, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == OF_A_PACKAGE["finetune_head"]
    assert before < 0.65 and after > 0.85 and losses[-1] < 0.5 < losses[0]
    old, new = onnx.load(classifier), onnx.load(tmp_path / "fonts.onnx")
    assert changed_weights(old, without_metadata(new)) == ["fc_0.w_0", "fc_0.b_0"]


@pytest.mark.slow
def test_adapters_learn_and_merged_they_give_the_same(tmp_path: Path) -> None:
    before, after, beside, merged, model = lora.main(tmp_path)
    names = ["adapters.safetensors", "merged.onnx"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert after < before - 0.3
    assert np.abs(beside - merged).max() < 1e-5 * np.abs(beside).max()
    assert len(model.graph.node) == len(onnx.load(lora.MODEL).graph.node)


@pytest.mark.slow
def test_a_trained_reader_learns_noise_by_adapters_and_merged_it_is_the_same(
    tmp_path: Path,
) -> None:
    path = fetched("rapidocr_rec")
    lora_reader = importlib.import_module("scripts.examples.lora_reader")
    before, after, beside, merged, data = lora_reader.main(path, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == OF_A_PACKAGE["lora_reader"]
    assert before < 0.2 and after > 0.45
    # the merged file is the original but for nine matrices
    old, kept = onnx.load(path), onnx.load(tmp_path / "merged.onnx")
    assert changed_weights(old, without_metadata(kept)) == [
        f"linear_{i}.w_0" for i in range(77, 86)
    ]
    # the same scores: in float32, and closer in float64, where only the rounding of the sums is left
    x = {"x": data["x"][:4]}
    one, two = (scored(m, lora_reader.SCORES) for m in (beside, merged))
    a, b = (run(m, x)[lora_reader.SCORES] for m in (one, two))
    assert np.abs(a - b).max() < 3e-6 * np.abs(a).max()
    a, b = (Reference(m).run({"x": x["x"][:1]})[lora_reader.SCORES] for m in (one, two))
    assert a.dtype == np.float64 and 0 < np.abs(a - b).max() < 1e-6 * np.abs(a).max()


def scored(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A model that returns one of its values, in place of its outputs."""
    found = onnxgrad.load(model)
    found.main.add_output(next(v for v in found.main.vars() if v.name == name))
    for v in found.main.outputs[:-1]:
        found.main.remove_output(v)
    return onnxgrad.to_proto(found)


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """What training wrote about itself taken away."""
    kept = [e for e in model.metadata_props if e.key != "onnxgrad.trained"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model


@pytest.mark.peers
def test_the_pendulum_swings_up_as_by_casadis_own_derivatives() -> None:
    ca = pytest.importorskip("casadi", reason="needs CasADi 3.8: pip install casadi")
    from scripts.examples import swing_up

    effort, torques, count = swing_up.main()
    state, torque = ca.MX.sym("state", 2), ca.MX.sym("torque")
    angle, speed = ca.vertsplit(state)
    faster = speed + 0.05 * (-9.81 * ca.sin(angle) - 0.1 * speed + torque)
    own = ca.Function("step", [state, torque], [ca.vertcat(angle + 0.05 * faster, faster)])
    expected = swing_up.swing_up(own)
    assert count == expected[2] < 20
    assert effort == pytest.approx(expected[0], rel=1e-9)
    assert np.abs(torques - expected[1]).max() < 1e-9


@pytest.mark.slow
def test_ten_clients_reach_the_accuracy_of_one() -> None:
    *_, last, digits, one = run_script("federated").splitlines()
    together, alone = (float(line.split()[-1]) for line in (last, one))
    assert together >= alone - 0.005 > 0.9
    assert digits == "digits of a client: at most 4"
