"""The choices of options and their defaults, for parsing and completing a command before slow
imports.

scripts/make_tables.py writes the names that other modules register, from PASSES on. The choices
before them are declared here.
"""

from typing import Literal, TypeAlias, get_args

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
MOST_THREADS = 256  # onnxruntime accepts any number, even one that stalls the machine
CHECKS = ("float64", "onnxruntime")
# runtimes with their own operators, and the pass that emits these
Runtime: TypeAlias = Literal["onnxruntime"]
RUNTIMES = {"onnxruntime": "raise-for-onnxruntime"}
Merge: TypeAlias = Literal["always", "auto", "never"]
MERGE = get_args(Merge)
# how a constant of `open-batch --open` continues beyond the size in the file
Reading: TypeAlias = Literal["ramp", "triangle", "band", "waves", "same", "scaled", "repeat"]
READINGS = get_args(Reading)
EVERY_READING = "*"
LintLevel: TypeAlias = Literal["error", "warn", "off"]
# what checkpointing keeps (grad/checkpointing/keeping.py)
POLICIES = ("auto", "everything", "products", "nothing")
EngineName: TypeAlias = Literal["auto", "graph", "blocks"]
# share of the largest value of an output: forty roundings to float16, each of 2**-11
FLOAT16_BOUND = "worst=0.02"
TUNE_SECONDS = 60.0
TUNE_FILE = "onnxgrad.tune.json"
# added to the name of an optimised model: the record for `rebase`
RECORD = ".rebase"
# the entry of a model's metadata that describes its adapters
ADAPTERS = "onnxgrad.lora"
# the files of a training step in its folder
STEP_FILES = (
    "train.onnx", "eval.onnx", "predict.onnx", "update.onnx", "state.safetensors", "manifest.json"
)  # fmt: skip

Preset: TypeAlias = Literal["clean", "default", "inference", "canonical", "training-safe"]
PRESETS = get_args(Preset)
PASSES = (
    "accumulate-gemms", "adjust-matmul-order", "backward-fold-scale-axis", "bind-defaults",
    "combine-parallel-conv", "combine-parallel-dense", "combine-parallel-gemm",
    "combine-parallel-matmul", "combine-parallel-matmul-right", "convert-layout", "convert-opset",
    "divide-by-root", "expand-matmul-of-sum", "fake-quantization-to-integer", "flatten-products",
    "float16", "fold-bias", "fold-constant", "fold-scale-axis", "forward-fold-scale-axis",
    "gradient", "infer-shapes", "inline", "legalize", "lower-composites", "lower-training",
    "merge-composites", "merge-consecutive", "merge-equal", "open-if", "outline",
    "raise-composites", "raise-for-onnxruntime", "remove-noops", "remove-unused",
    "remove-unused-functions", "remove-unused-parameters", "reorder-gather-matmul", "select-rows",
    "simplify-arithmetic", "simplify-inference", "simplify-sizes", "simplify-transpose",
    "sink-constants", "strip-metadata", "transpose-after-concat",
)  # fmt: skip
LINTS = (
    "nan-weights", "infinite-weights", "zero-weights", "missing-weights", "dead-outputs",
    "nan-outputs", "training-mode", "random-operators", "unread-inputs", "float64-islands",
    "missing-kernels", "host-paths",
)  # fmt: skip
LOSSES = (
    "bce_with_logits", "cosine", "cosine_embedding", "cross_entropy", "ctc", "huber", "kl_div",
    "l1", "l1_penalty", "l2_penalty", "mse", "output", "proximal_penalty", "sequence_cross_entropy",
    "smooth_l1", "triplet_margin",
)  # fmt: skip
METRICS = (
    "accuracy", "confusion", "f1", "iou", "perplexity", "pr_auc", "precision", "r2", "recall",
    "roc_auc", "top_k",
)  # fmt: skip
OPTIMIZERS = (
    "sgd", "adam", "adamw", "nadam", "radam", "adagrad", "rmsprop", "adadelta", "lion", "muon",
    "adafactor",
)  # fmt: skip
SCHEDULES = (
    "constant", "linear", "polynomial", "cosine", "cosinewarmrestarts", "exponential", "step",
    "multistep", "onecycle", "reduceonplateau", "sequential",
)  # fmt: skip
