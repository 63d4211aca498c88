"""The presets: which passes run, in which order, and why each stands where it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One position of a preset: a pass as `parse_passes` reads it, and the reason for the
    position.
    """

    item: str
    why: str


@dataclass(frozen=True, slots=True)
class Preset:
    """Steps in order, and what they promise together."""

    why: str
    steps: tuple[Step, ...]


_CLEAN = (
    Step("remove-unused", "first, so that no pass below works on unused bindings"),
    Step("remove-unused-functions", "nor on functions that no call reaches"),
    Step(
        "remove-unused-parameters",
        "nor on what a call computes for a function that does not read it",
    ),
    Step(
        "remove-noops",
        "Identity, Cast and Expand hide constants and equal bindings from the next two",
    ),
    Step(
        "fold-constant",
        "a raw export's Transpose(weight), shapes and biases become the constants that laws ask "
        "for",
    ),
    Step(
        "simplify-sizes",
        "what is left of shape arithmetic depends on open sizes; its chains end at the inputs",
    ),
    Step(
        "open-if",
        "a condition is constant once it is folded; what stands in a branch is open to all below",
    ),
    Step(
        "merge-equal",
        "what is equal shows only once it is folded; then parallel branches share an input",
    ),
    Step(
        "merge-consecutive",
        "what two equal branches share has one reader less once they are merged",
    ),
)
# a weight that is folded, merged with an equal one or concatenated is another parameter for
# training
_TRAINABLE = (
    *_CLEAN[:2],
    Step("remove-noops{floats=false}", "the 1 of a product may be trained"),
    Step("fold-constant{floats=false}", "shapes, sizes and indices only"),
    Step("simplify-sizes", "sizes are no weights"),
    Step(
        "merge-equal{floats=false}",
        "what is equal shows only once it is folded; biases of zeros stay apart",
    ),
    Step("simplify-transpose{floats=false}", "fewer and lower transposes between the same weights"),
    Step("remove-unused", "shapes that were folded"),
)
_BACKWARD = Step(
    "backward-fold-scale-axis", "before forward: behind a product a scale moves whatever its sign"
)
_FORWARD = Step("forward-fold-scale-axis", "what is left in front of a product")
_FOLDED = (
    Step("fold-constant", "weight * scale becomes the weight"),
    Step("fold-bias", "the shift is next to its product only when the scale between them is gone"),
)
_RAISED = (
    Step(
        "raise-composites",
        "before scales and sums change what the chains look like; what it emits is merged again "
        "below",
    ),
    Step("merge-equal", "the masks and tables that it made for each layer are one"),
)
_STATISTICS = Step("fold-constant", "the statistics' arithmetic becomes one scale and one shift")
_INFERENCE = (
    Step(
        "simplify-inference",
        "after the clean-up: a BatchNormalization becomes arithmetic on constants",
    ),
    _STATISTICS,
    _BACKWARD,
    _FORWARD,
    *_FOLDED,
)
_LOWERED = Step("lower-composites", "their kernels are slower than these chains")
# no scale moves forward, because onnxruntime looks for the multiply at the end of an RMS
# normalisation
_INFERENCE_THAT_PAYS = (
    Step(
        "simplify-inference{only_after_products=true}",
        "a BatchNormalization that no product can take in would be two kernels in place of one",
    ),
    _STATISTICS,
    Step(
        "backward-fold-scale-axis{scalars=true}",
        "a scale moves whatever its sign; of one factor too, as attention scales its queries",
    ),
    *_FOLDED,
)
FIRST_OF_FORMS = "divide-by-root"
_LAST = (
    Step(FIRST_OF_FORMS, "one kernel of onnxruntime's for the five of an RMS normalisation"),
    Step(
        "flatten-products",
        "last, when no law looks for a MatMul any more: onnxruntime makes these Gemms itself, and "
        "leaves two Reshapes at each",
    ),
    Step("merge-equal", "branches of one input share the Reshape of it"),
    Step(
        "accumulate-gemms", "last too: a Gemm that adds another is no branch of a family any more"
    ),
    Step("sink-constants", "behind all that shares, merges or folds constants"),
)
_PRODUCTS = (
    Step(
        "simplify-transpose",
        "before combining, so that right operands are weights and not transposes of weights",
    ),
    Step(
        "combine-parallel-matmul",
        "after the scales: branches that differ in a multiply only are equal now",
    ),
    Step("combine-parallel-gemm", "the same for Gemm"),
    Step("combine-parallel-conv", "the same for Conv"),
    Step("transpose-after-concat", "combining made Concats of transposes"),
    Step("remove-unused", "the weights that were combined"),
)
_ARITHMETIC = Step(
    "simplify-arithmetic{exact=false}", "numbers meet before scales look for a product"
)
_EVERYWHERE = tuple(
    Step(f"{s.item}{{merge=always}}" if "parallel" in s.item else s.item, s.why) for s in _PRODUCTS
)

DESCRIBED: dict[str, Preset] = {
    "clean": Preset("no law about products, no weight computed anew", _CLEAN),
    "default": Preset(
        "not slower than the input: what the cost rules do not forbid",
        (
            *_CLEAN,
            *_RAISED,
            _LOWERED,
            *_INFERENCE_THAT_PAYS,
            *_PRODUCTS[:-1],
            *_LAST,
            _PRODUCTS[-1],
        ),
    ),
    "inference": Preset(
        "BatchNormalization and Dropout away, scales and shifts into weights, products as they are",
        (*_CLEAN, *_RAISED, *_INFERENCE, _PRODUCTS[-1]),
    ),
    "canonical": Preset(
        "every law wherever it holds, no cost rule: equal computations get equal graphs",
        (*_CLEAN, *_RAISED, _ARITHMETIC, *_INFERENCE, *_EVERYWHERE),
    ),
    "training-safe": Preset(
        "every weight keeps its name, shape and bytes, and BatchNormalization and Dropout stay",
        _TRAINABLE,
    ),
}
PRESETS: dict[str, tuple[str, ...]] = {
    name: tuple(step.item for step in preset.steps) for name, preset in DESCRIBED.items()
}
