"""PyTorch's own gradients of the training models: `python scripts/reference_gradients.py [NAME ...]
[--full]`.

Recomputes NAME.npz beside each exported NAME.onnx of models/training (or, with --full, of the cache
folder). Keys: `in:<input>`, `loss64` (float64 scalar), `grad:<parameter or float input>` (the
float64 gradient, rounded to float32), and `error32:<same>` (the largest difference of PyTorch's
float32 gradient from the float64 one, a float32 scalar).
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exporting.common import numpy_of, randomise
from exporting.losses import MODELS, Training
from fetch_models import cache_folder
from torch.overrides import TorchFunctionMode

SMALL = Path(__file__).resolve().parent.parent / "models" / "training"


class InDouble(TorchFunctionMode):
    """Replaces float32 casts in library code (`x.to(torch.float32)`, `x.float()`) by float64 casts.

    Rotary embeddings are left alone: their float32 tables are constants of the exported graph.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.active = True
        for module in model.modules():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.float()
                module.register_forward_pre_hook(lambda *_: self._switch(False))
                module.register_forward_hook(lambda *_: self._switch(True))

    def _switch(self, active: bool) -> None:
        self.active = active

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `function` with float64 in place of each float32 argument."""
        kwargs = kwargs or {}
        if self.active:
            if function is torch.Tensor.float:
                function = torch.Tensor.double
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return function(*args, **kwargs)


def build(training: Training, *, full: bool) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Returns the seeded, randomised module in its export mode, and its inputs. Every call returns
    the same values.
    """
    torch.manual_seed(training.seed)
    model, inputs = training.build(full)
    model.train(training.train)
    randomise(model)
    return model, inputs


def gradients(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], dtype: torch.dtype
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and its gradients w.r.t. all parameters (without the prefix `model.`) and float
    inputs, in `dtype`.
    """
    model = copy.deepcopy(model).to(dtype)
    feeds = {
        k: v.to(dtype).requires_grad_() if v.is_floating_point() else v for k, v in inputs.items()
    }
    wanted: dict[str, torch.Tensor] = {
        name.removeprefix("model."): p for name, p in model.named_parameters()
    }
    wanted |= {k: v for k, v in feeds.items() if v.requires_grad}
    if dtype == torch.float64:
        with InDouble(model):
            loss = model(**feeds)
    else:
        loss = model(**feeds)
    return loss, dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))


def reference(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Returns the arrays of NAME.npz, which the module's docstring lists."""
    _, single = gradients(model, inputs, torch.float32)
    loss, double = gradients(model, inputs, torch.float64)
    if loss.dtype != torch.float64:
        raise ValueError(f"the float64 run came out in {loss.dtype}")
    arrays = {f"in:{name}": numpy_of(value) for name, value in inputs.items()} | {
        "loss64": numpy_of(loss)
    }
    for name, gradient in double.items():
        arrays[f"grad:{name}"] = numpy_of(gradient.float())
        arrays[f"error32:{name}"] = numpy_of((single[name].double() - gradient).abs().max().float())
    return arrays


def main(arguments: list[str]) -> int:
    """Writes NAME.npz for the named models (default: every NAME.onnx in the folder) and prints the
    float32 error.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--full", action="store_true", help="the full-size models in the cache folder"
    )
    options = parser.parse_args(arguments)
    folder = cache_folder("training") if options.full else SMALL
    for name in options.names or sorted(path.stem for path in folder.glob("*.onnx")):
        arrays = reference(*build(MODELS[name], full=options.full))
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
        largest = max(float(np.abs(v).max()) for k, v in arrays.items() if k.startswith("grad:"))
        error = max(float(v) for k, v in arrays.items() if k.startswith("error32:"))
        print(
            f"{name:16} loss {float(arrays['loss64']):.6f}  largest gradient {largest:.3g}  "
            f"PyTorch float32 against float64 {error / largest:.1e} of it",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
