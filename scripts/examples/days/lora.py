"""LoRA: a transformer learns by small matrices beside its own, which are saved separately.

    python scripts/examples/days/lora.py

The model is models/gpt2.onnx, 12 layers with random weights. Its text counts: each word is the one
before it plus one. Adapters go beside the matrices of attention, feed-forward net, the table of
words (which the file calls lm_head, as the two are tied) and the head, the product node_linear.
adapters.safetensors and merged.onnx are written to the working folder.
"""

from pathlib import Path

import numpy as np
import onnx

from onnxgrad import Trainer, train, training_step

model = Path(__file__).parents[3] / "models" / "gpt2.onnx"
text = {"input_ids": (np.arange(256)[:, None] + np.arange(16)) % 20}
adapted = train.lora(model, "*.attn.*,*.mlp.*,*.lm_head.*,node_linear", rank=8)
loss = train.SequenceCrossEntropy("logits", target="input_ids")
trainer = Trainer(training_step(adapted, loss, train.AdamW(lr=0.01), "*.lora_*"))
losses = trainer.fit(text, epochs=4).losses
train.save_adapters(trainer.export(adapted), "adapters.safetensors")
onnx.save(train.merge(model, "adapters.safetensors"), "merged.onnx")
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
