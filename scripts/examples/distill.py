"""Knowledge distillation: a small student learns from a teacher's soft answers, without labels.

    python scripts/examples/distill.py [-o FOLDER]

A teacher with two hidden layers separates two spirals; the student has one. Both stand in
one file. The teacher learns from labels; then the student learns to answer as the teacher does
(Hinton et al., "Distilling the knowledge in a neural network", 2015). `stop` treats the teacher's
answers as constants: without it the teacher would learn from its pupil. If the answers are data
instead, for instance from another machine, the loss is KLDiv. FOLDER gets distilled.onnx.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from onnxgrad import Trainer, op, train, training_step

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
two_nets (float[N,2] x) => (float[N,2] teacher, float[N,2] student, float[N,2] log_p)
  <float temperature = {2}> {
  t1 = Gemm (x, teacher_w1, teacher_b1)     t2 = Tanh (t1)
  t3 = Gemm (t2, teacher_w2, teacher_b2)    t4 = Tanh (t3)    teacher = Gemm (t4, teacher_w3)
  s1 = Gemm (x, student_w1, student_b1)     s2 = Tanh (s1)    student = Gemm (s2, student_w2)
  softer = Div (student, temperature)       log_p = LogSoftmax (softer)
}
"""
SHAPES = {
    "teacher_w1": (2, 32), "teacher_b1": (32,), "teacher_w2": (32, 32), "teacher_b2": (32,),
    "teacher_w3": (32, 2), "student_w1": (2, 24), "student_b1": (24,), "student_w2": (24, 2),
}  # fmt: skip


def spirals(count, seed):
    """Points of two arms that wind around each other, and which arm each is of."""
    rng = np.random.default_rng(seed)
    label, t = rng.integers(0, 2, count), 4 * np.sqrt(rng.random(count))
    x = np.stack([np.cos(t + np.pi * label), np.sin(t + np.pi * label)]) * t / 2
    return (x + rng.normal(0, 0.05, x.shape)).T.astype(np.float32), label


def divergence(values):
    """KL of the student's answers from the teacher's, both at temperature 2, times its square."""
    log_t = op.LogSoftmax(values["teacher"] / 2.0)
    each = op.Exp(log_t) * (log_t - values["log_p"])
    return 4.0 * op.ReduceMean(op.ReduceSum(each, [1], keepdims=0), keepdims=0)


def main(folder=None):
    model, rng = onnx.parser.parse_model(MODEL), np.random.default_rng(0)
    for name, shape in SHAPES.items():
        value = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    x, labels = spirals(1000, seed=1)
    teaching = training_step(model, train.CrossEntropy("teacher"), train.Adam(), "teacher_*")
    teacher = Trainer(teaching, rate=0.01)
    teacher.fit({"x": x, "labels": labels}, epochs=60, batch_size=100)
    taught, what = teacher.export(model), ["params", "!temperature"]
    step = training_step(taught, divergence, train.Adam(), what, stop="teacher")
    student = Trainer(step, rate=0.02)
    losses = student.fit({"x": x}, epochs=200, batch_size=100).losses
    result = student.export(taught)
    x, labels = spirals(1000, seed=2)
    session = ort.InferenceSession(result.SerializeToString())
    says = dict(zip(["teacher", "student"], session.run(["teacher", "student"], {"x": x})))
    right = {name: float((z.argmax(1) == labels).mean()) for name, z in says.items()}
    print(f"divergence {losses[0]:.4f} -> {losses[-1]:.4f}, right on held-out points: {right}")
    if folder:
        onnx.save(result, folder / "distilled.onnx")
    return step, result, losses, right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    main(parser.parse_args().o)
