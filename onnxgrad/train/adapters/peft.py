"""Adapters in the form of Hugging Face's PEFT: a folder with `adapter_config.json` and
`adapter_model.safetensors`, whose matrices are ours transposed, by the names of PyTorch's modules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import save_together
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.storage.atomic_files import text_of
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.adapters.adapters import LORA_A, LORA_B, Adapters, adapters_of
from onnxgrad.train.adapters.targets import Site, sites
from onnxgrad.train.export import digest
from onnxgrad.wording import counted, printable_json, shape_text, what_there_is

FILES = _CONFIG, _MODEL = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MOST = 1e9  # the limit of a rank or an alpha
# a base weight that PEFT stores too, as it does for embeddings and heads
_BASE = (".base_layer.weight", ".weight")
# what exporters and quantisers put behind a module in the name of its matrix: onnxruntime-genai
# `.MatMul`, onnxruntime's quantiser `_Q4`
_STORED = re.compile(r"(\.MatMul)?\.q?weight(_Q\d\w*|_quantized)?$")
# suffixes of the names of a module's matrices: of a layer, of an embedding
_SUFFIXES = {
    ".lora_A.weight": LORA_A,
    ".lora_B.weight": LORA_B,
    ".lora_embedding_A": LORA_A,
    ".lora_embedding_B": LORA_B,
}
# other settings of a configuration that change the result of an adapter
_OTHER = (
    "alpha_pattern", "arrow_config", "lora_bias", "layer_replication", "modules_to_save",
    "rank_pattern", "target_parameters", "trainable_token_indices", "alora_invocation_tokens",
)  # fmt: skip


@known_keywords
def save_peft(
    model: ModelLike,
    folder: str | PathLike[str],
    values: Mapping[str, Array] | None = None,
    *,
    prefix: str | None = None,
    rename: Mapping[str, str] | None = None,
) -> None:
    """Writes the adapters of a model, with these values if given, in a form that PEFT reads.

    prefix: the beginning of the model's module names that PEFT's model lacks, such as the name of
    a module that was only there for the export. None: adapters that `read_peft` read keep the names
    that they had there, others have the model's. rename: parts of the model's module names as
    PEFT's model has them, such as {".attn.": ".self_attn."} for a file of onnxruntime-genai. Raises
    InputError as `adapters_of` does, for a weight whose module is unknown or has another beginning,
    for a table that the model also multiplies with, and if the folder cannot be written.
    """
    found, folder = adapters_of(model, values), Path(folder)
    known = {site.name: site for site in sites(load(model))}
    written: dict[str, Array] = {}
    modules = []
    for weight in found.weights:
        site, (a, b) = _checked(known[weight]), found.factors(weight)
        modules.append(_written(found, site, prefix, rename or {}))
        ones = (1,) * ((site.weight.rank or 2) - 2 if site.uses[0].kind == "conv" else 0)
        table = "_embedding" if site.is_table else ""
        for letter, factor in (("A", a.T), ("B", b.T)):
            name = f"{_PREFIX}{modules[-1]}.lora{table}_{letter}{'' if table else '.weight'}"
            written[name] = factor.reshape(*factor.shape, *ones)
    config = {
        "peft_type": "LORA", "r": found.rank, "lora_alpha": found.alpha, "bias": "none",
        "target_modules": modules, "task_type": None, "inference_mode": True, "lora_dropout": 0.0,
    }  # fmt: skip
    data = (printable_json(config) + "\n").encode()
    save_together(folder, {_MODEL: safetensors_file.pieces(written), _CONFIG: data})


def _written(adapters: Adapters, site: Site, prefix: str | None, rename: Mapping[str, str]) -> str:
    """Returns the name of a site's module in a file. Raises InputError."""
    module = _module(site, rename)
    if prefix is None and site.name in adapters.modules:
        return adapters.modules[site.name]
    if not module:
        raise InputError(
            f"the module of '{site.name}' is unknown: save the adapters with save_adapters instead"
        )
    if not module.startswith(prefix or ""):
        raise InputError(f"prefix: the module '{module}' does not begin with '{prefix}'")
    return module.removeprefix(prefix or "")


def _module(site: Site, rename: Mapping[str, str]) -> str:
    """Returns the PyTorch module of the weight, with some parts renamed; empty if it is unknown.

    An exporter names a tied weight after one of its modules, and a node after the module that runs
    it. The weight's name counts if it lies in the node's module, else the node's module does.
    """
    by_name, stored = _STORED.subn("", site.name)
    if not (stored and f"{by_name}.".startswith(f"{site.module}." if site.module else "")):
        by_name = site.module
    for part, other in rename.items():
        by_name = by_name.replace(part, other)
    return by_name


@known_keywords
def read_peft(
    folder: str | PathLike[str],
    model: ModelLike,
    *,
    prefix: str | None = None,
    rename: Mapping[str, str] | None = None,
) -> Adapters:
    """Returns the adapters of a PEFT folder, for `load_adapters` and `merge` of this model.

    A module M is the weight `M.weight`, or the weight that the exporter recorded for M. prefix: the
    beginning of the model's module names that PEFT's model lacks; None: any. rename: as for
    `save_peft`. Raises InputError for a folder without adapters, a module that does not have
    exactly one matrix, a base weight that is not the model's, a configuration that computes
    something else (DoRA, biases, ranks per module), and a table that the model also multiplies
    with, of which PEFT adapts only one use.
    """
    folder = Path(folder)
    config = _config(folder / _CONFIG)
    arrays, _ = safetensors_file.read(folder / _MODEL)
    program = load(model)
    known, rank = [s for s in sites(program) if not s.reason], config["r"]
    values: dict[str, Array] = {}
    modules: dict[str, str] = {}
    for name, array in arrays.items():
        suffix = next((s for s in (*_SUFFIXES, *_BASE) if name.endswith(s)), None)
        if suffix is None or not name.startswith(_PREFIX):
            raise InputError(f"{folder}: '{name}' is not a matrix of an adapter that is known here")
        module = name.removesuffix(suffix).removeprefix(_PREFIX)
        site = _the_site(module, known, prefix, rename or {})
        if any(n != 1 for n in array.shape[2:]) or array.ndim < 2:
            raise InputError(f"{folder}: '{name}' is {shape_text(array.shape)}, no matrix")
        if suffix in _BASE:
            _check_base(program, site, array, f"{folder}: '{name}'")
            continue
        values[site.name + _SUFFIXES[suffix]] = array.reshape(array.shape[:2]).T
        modules[site.name] = module
    # alpha / sqrt(r) instead of alpha / r (Kalajdzievski 2023)
    alpha = config["lora_alpha"] * (math.sqrt(rank) if config.get("use_rslora") else 1)
    targets = tuple(sorted({name.rpartition(".lora_")[0] for name in values}))
    return Adapters(rank, float(alpha), targets, digest(model), values, modules)


def _check_base(program: Program, site: Site, array: Array, where: str) -> None:
    """Raises InputError if the weight that PEFT stored beside an adapter is not the model's."""
    tensor = site.weight.initializer
    own = site.weight.const if tensor is None else program.array(tensor)
    if own is None or not any(np.array_equal(own, a) for a in (array, array.T)):
        raise InputError(
            f"{where} is not '{site.name}' of this model: export the model that the adapters "
            "were trained beside"
        )


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        raise InputError(f"{path} is not a configuration of LoRA")
    rank: Any = found.get("r")
    alpha: Any = found.get("lora_alpha")
    numbers = type(rank) is int and type(alpha) in (int, float)
    if not (numbers and 0 < rank < _MOST and 0 < alpha < _MOST):
        found_numbers = f"r={repr(rank)[:40]}, lora_alpha={repr(alpha)[:40]}"
        raise InputError(f"{path}: r and lora_alpha must be numbers above 0, not {found_numbers}")
    if (other := next((k for k, v in found.items() if v and _differs(k, v)), None)) is not None:
        raise InputError(f"{path}: {other}={found[other]!r} is not known here: merge it with PEFT")
    return dict(found)


def _differs(key: str, value: Any) -> bool:
    """Whether this setting changes the formula or the base model."""
    if key == "bias":
        return bool(value != "none")
    if key == "init_lora_weights":  # PiSSA and its kin move the base weights
        return isinstance(value, str) and value not in ("gaussian", "eva", "orthogonal")
    return key in _OTHER or (key.startswith("use_") and key != "use_rslora")


def _the_site(
    module: str, known: Sequence[Site], prefix: str | None, rename: Mapping[str, str]
) -> Site:
    """Returns the matrix of a module. Raises InputError."""

    def meant(name: str) -> bool:
        if prefix is not None:
            return name == prefix + module
        return name == module or name.endswith(f".{module}")

    found = [s for s in known if meant(_module(s, rename))]
    # a weight with several readers belongs to several modules
    found = found or [s for s in known if any(map(meant, (*s.labels, _STORED.sub("", s.name))))]
    if len(found) != 1:
        listed = what_there_is(_module(s, rename) or s.name for s in found or known)
        raise InputError(
            f"module '{module}' matches {counted(len(found), 'matrix', 'matrices')} of the "
            "model that can have adapters, "
            f"not one{listed}; pass the beginning of their names as prefix=, other parts as rename="
        )
    return _checked(found[0])


def _checked(site: Site) -> Site:
    """Returns the site. Raises InputError if PEFT's adapter would apply to only some of
    its readers.
    """
    if len({use.kind == "rows" for use in site.uses}) > 1:
        raise InputError(
            f"'{site.name}' is a table and a factor of products in this model: an adapter of PEFT "
            "changes only one of them, an adapter of onnxgrad both"
        )
    return site
