"""LoRA on a transformer: GPT-2 learns from text by small matrices beside its own, which stay.

    python scripts/examples/lora.py [-o FOLDER]

The model is models/gpt2.onnx, 12 layers as transformers exports them, narrow and with random
weights. Its "text" has 20 of its 300 words, each of which says which comes next. `lora` puts A and
B of rank 8 beside each matrix of attention, feed-forward net, table of words (the file calls it
lm_head, as the two are tied) and head, the product node_linear (Hu et al., "LoRA", 2021); only
these are trained. Merged into the matrices they give the same outputs. FOLDER gets
adapters.safetensors, which holds only them, and merged.onnx.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from onnxgrad import Trainer, train, training_step

MODEL = Path(__file__).resolve().parents[2] / "models" / "gpt2.onnx"


def text(count, seed):
    """Sentences of 16 words: the first at random, each other one by a fixed rule."""
    follows = np.random.default_rng(0).permutation(20)
    words = [np.random.default_rng(seed).integers(0, 20, count)]
    while len(words) < 16:
        words.append(follows[words[-1]])
    return {"input_ids": np.stack(words, 1)}


def main(folder=None, epochs=4):
    model = train.lora(onnx.load(MODEL), "*.attn.*,*.mlp.*,*.lm_head.*,node_linear", rank=8)
    loss = train.SequenceCrossEntropy("logits", target="input_ids")
    trainer = Trainer(training_step(model, loss, train.AdamW(), "*.lora_*"), rate=0.01)
    held_out = text(64, seed=2)
    before = trainer.evaluate(held_out)["loss"]
    trainer.fit(text(512, seed=1), epochs=epochs)
    after = trainer.evaluate(held_out)["loss"]
    count = sum(v.size for v in trainer.parameters.values())
    print(f"held-out loss {before:.3f} -> {after:.3f} by {count} numbers beside the model")
    beside = trainer.export(model)
    merged = train.merge(beside)
    a, b = (
        ort.InferenceSession(m.SerializeToString()).run(["logits"], held_out)[0]
        for m in (beside, merged)
    )
    print(f"merged, outputs differ by {np.abs(a - b).max():.1e} of {np.abs(a).max():.1f}")
    if folder:
        train.save_adapters(beside, folder / "adapters.safetensors")
        onnx.save(merged, folder / "merged.onnx")
    return before, after, a, b, merged


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", metavar="FOLDER", type=Path, help="where files are written")
    main(parser.parse_args().o)
