"""Losses of your own, with labels of their own: Dice, focal and contrastive.

    python scripts/examples/own_losses.py

A loss is a function of the model's values by name. With a second parameter it receives the place,
whose `labels(name, dtype, shape)` is a new input of the step. Two find discs in noise (Milletari
et al., "V-Net", 2016; Lin et al., "Focal Loss", 2017), one moves points of a class together
(Hadsell et al., "Learning an Invariant Mapping", 2006).
"""

import numpy as np
import onnx

from onnxgrad import Trainer, op, train, training_step

DISCS = """<ir_version: 10, opset_import: ["" : 20]>
discs (float[N,1,16,16] x) => (float[N,1,16,16] logits) {
  h = Conv <pads = [2,2,2,2]> (x, w1, b1)  r = Relu (h)
  logits = Conv <pads = [2,2,2,2]> (r, w2, b2) }"""
PAIRS = """<ir_version: 10, opset_import: ["" : 20]>
pairs (float[N,6] x, float[N,6] y) => (float[N,2] a, float[N,2] b) {
  h = Gemm (x, w1)  r = Tanh (h)  a = Gemm (r, w2)
  k = Gemm (y, w1)  s = Tanh (k)  b = Gemm (s, w2) }"""


def dice(values, place, smooth=1.0):
    """Returns 1 - 2 |P T| / (|P| + |T|), of each image's predicted and true area."""
    p = op.Sigmoid(values["logits"])
    t = place.labels("mask", np.float32, p.shape)
    both, all_ = (op.ReduceSum(v, [1, 2, 3], keepdims=0) for v in (p * t, p + t))
    return op.ReduceMean(1.0 - (2.0 * both + smooth) / (all_ + smooth), keepdims=0)


def focal(values, place, gamma=2.0, alpha=0.25):
    """Returns cross entropy that counts less where the answer is right already."""
    z = values["logits"]
    t = place.labels("mask", np.float32, z.shape)
    weight = (alpha * t + (1.0 - alpha) * (1.0 - t)) * op.Abs(t - op.Sigmoid(z)) ** gamma
    return op.ReduceMean(weight * (op.Softplus(z) - t * z), keepdims=0)


def contrastive(values, place, margin=2.0):
    """Returns d^2 for pairs of one class, max(margin - d, 0)^2 for others, d their distance."""
    a, b = values["a"], values["b"]
    same = place.labels("same", np.float32, a.shape[:1])
    square = op.ReduceSum((a - b) * (a - b), [1], keepdims=0)
    gap = op.Relu(margin - op.Sqrt(square + 1e-9))
    return op.ReduceMean(same * square + (1.0 - same) * gap * gap, keepdims=0)


def discs(count, rng):
    """Returns discs in noise, and where they are."""
    row, column = rng.uniform(4, 12, (2, count, 1, 1))
    square = (np.arange(16)[:, None] - row) ** 2 + (np.arange(16) - column) ** 2
    mask = np.float32(square < rng.uniform(4, 16, (count, 1, 1)))[:, None]
    return {"x": mask + rng.normal(0, 0.7, mask.shape).astype(np.float32), "mask": mask}


def main():
    rng, found = np.random.default_rng(0), {}
    of_discs = {"w1": (8, 1, 5, 5), "b1": (8,), "w2": (1, 8, 5, 5), "b2": (1,)}
    x = rng.normal(size=(2, 512, 6)).astype(np.float32)
    pairs = {"x": x[0], "y": x[1], "same": np.float32((x[0, :, 0] > 0) == (x[1, :, 0] > 0))}
    seen = (DISCS, of_discs, discs(256, rng), ["iou{threshold=0,target=mask}"])
    felt = (PAIRS, {"w1": (6, 16), "w2": (16, 2)}, pairs, None)
    for loss, (text, shapes, data, metrics) in ((dice, seen), (focal, seen), (contrastive, felt)):
        model = onnx.parser.parse_model(text)
        for name, shape in shapes.items():
            value = rng.normal(0, 0.2, shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        trainer = Trainer(training_step(model, train.Custom(loss, "mean"), train.Adam(lr=0.01)))
        first = trainer.fit(data, epochs=15).losses[0]
        found[loss.__name__] = first, trainer.evaluate(data, metrics=metrics)
        print(loss.__name__, *found[loss.__name__])
    return found


if __name__ == "__main__":
    main()
