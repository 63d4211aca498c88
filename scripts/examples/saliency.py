"""Saliency: which pixels a real classifier's answer comes from, by integrated gradients.

    python scripts/fetch_models.py rapidocr_cls          # prints where the model lies
    python scripts/examples/saliency.py MODEL.onnx [-o FOLDER]

The model is PaddleOCR's angle classifier: a line of text in, upright or upside down out. The answer
to explain is the score of upright, a slice of a value inside the model: `gradient` takes that as
its target. The share of a pixel is its difference from an empty page times the mean of the gradient
on the straight way from the page to the picture (Sundararajan et al., "Axiomatic attribution for
deep networks", 2017). The shares add up to what the text changes in the score, which tells whether
the way had enough points. FOLDER gets saliency.png. Needs matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import onnxgrad

SCORES = "linear_1.tmp_1"


def picture(words):
    """Black on white, (3, 48, 192), in the range -1 to 1 that the model reads."""
    canvas = FigureCanvasAgg(Figure(figsize=(1.92, 0.48), dpi=100))
    canvas.figure.text(0.5, 0.5, words, ha="center", va="center", fontsize=24)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return pixels.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1


def main(model, folder=None, points=512):
    graph = onnxgrad.gradient(model, "x", f"{SCORES}[:,0]")
    graph.graph.output.append(onnx.ValueInfoProto(name=SCORES))
    session = ort.InferenceSession(graph.SerializeToString())
    x = picture("onnxgrad")
    page = np.ones_like(x)
    shares = np.zeros_like(x)
    for k in range(0, points, 32):
        # t = s^3: the score is steep near the empty page, so the points lie closer there
        s = ((np.arange(k, k + 32) + 0.5) / points)[:, None, None, None].astype(np.float32)
        slopes = session.run(["x_grad"], {"x": page + s**3 * (x - page)})[0]
        shares += (slopes * 3 * s**2 / points).sum(0) * (x - page)
    scores = session.run([SCORES], {"x": np.stack([page, x])})[0][:, 0]
    changed, added = float(scores[1] - scores[0]), float(shares.sum())
    print(f"upright scores {scores[0]:.3f} empty, {scores[1]:.3f} with text")
    print(f"the text changes it by {changed:.3f}, the shares add up to {added:.3f}")
    if folder:
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        above, below = figure.subplots(2)
        above.imshow((x.transpose(1, 2, 0) + 1) / 2)
        each = shares.sum(0)
        most = np.abs(each).max()
        below.imshow(each, cmap="RdBu", vmin=-most, vmax=most)
        below.set_title("blue: speaks for upright, red: against it")
        for axes in (above, below):
            axes.axis("off")
        figure.savefig(folder / "saliency.png", dpi=120)
    return x, shares, changed, added


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="where fetch_models.py has put rapidocr_cls")
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where the picture is written")
    arguments = parser.parse_args()
    main(arguments.model, arguments.o)
