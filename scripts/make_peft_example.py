"""Writes tests/data/peft: adapters as PEFT saves them, their base weights, PyTorch's results
without and with them, and the losses of 20 AdamW steps that train them.

    python scripts/make_peft_example.py [FOLDER]

Needs torch and peft (the committed files are by 0.21.2).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "peft"


def main(folder: Path) -> None:
    """An embedding, two layers and a convolution, each with an adapter of random numbers."""
    import peft
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = torch.nn.Embedding(11, 6)
            self.net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4, bias=False))
            self.conv = torch.nn.Conv1d(4, 3, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.conv(self.net(self.emb(ids)).mT)
            return found

    torch.manual_seed(0)
    model, ids = Model(), torch.arange(10).reshape(2, 5)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    before = model(ids).detach().numpy()
    modules = ["emb", "net.0", "net.1", "conv"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=6, target_modules=modules))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn_like(p))
    after = adapted(ids).detach().numpy()
    adapted.save_pretrained(str(folder))
    (folder / "README.md").unlink()
    parameters = [p for p in adapted.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(parameters, lr=1e-2), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(adapted(ids), torch.tensor(before))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = {"ids": ids.numpy(), "before": before, "after": after, "losses": np.array(losses)}
    np.savez(folder / "values.npz", **found, **weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
