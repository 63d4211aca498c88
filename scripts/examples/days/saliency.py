"""Saliency: on which pixels a classifier's answer depends, by the gradient of its score.

    python scripts/fetch_models.py rapidocr_cls          # prints where the model lies
    python scripts/examples/days/saliency.py MODEL.onnx

The model is PaddleOCR's angle classifier: a line of text in, upright or upside down out. `onnxgrad
inspect MODEL --text` shows that its answer is the Softmax of linear_1.tmp_1; column 0 of that is
the score of upright. saliency.png is written to the working folder. Needs Pillow.
"""

import sys

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageDraw

import onnxgrad

page = Image.new("RGB", (192, 48), "white")
ImageDraw.Draw(page).text((96, 24), "onnxgrad", "black", font_size=32, anchor="mm")
picture = np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
graph = onnxgrad.gradient(sys.argv[1], "x", "linear_1.tmp_1[:,0]")
session = ort.InferenceSession(graph.SerializeToString())
slope = session.run(["x_grad"], {"x": picture})[0]
saliency = np.abs(slope[0]).max(0)
Image.fromarray(np.uint8(255 * saliency / saliency.max())).save("saliency.png")
