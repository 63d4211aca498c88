"""The presets: their passes in order, with the reason for each position."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One position of a preset: a pass in the syntax of `parse_passes`, and the reason for its
    position.
    """

    item: str
    why: str


@dataclass(frozen=True, slots=True)
class Preset:
    """Steps in order, and the promise of the whole preset."""

    why: str
    steps: tuple[Step, ...]


_CLEAN = (
    Step("remove-unused", "first, so that no pass below works on unused bindings"),
    Step("remove-unused-functions", "so that no pass works on functions that no call reaches"),
    Step(
        "remove-unused-parameters",
        "so that no pass works on operands that a function does not read",
    ),
    Step(
        "remove-noops",
        "Identity, Cast and Expand hide constants and equal bindings from later passes",
    ),
    Step(
        "fold-constant",
        "Transpose(weight), shapes and biases of raw exports become the constants that rewrite "
        "rules need",
    ),
    Step(
        "simplify-sizes",
        "the shape arithmetic that could not be folded depends on open sizes of the inputs",
    ),
    Step(
        "open-if",
        "conditions are constant after folding; later passes then see the nodes of the branch",
    ),
    Step(
        "merge-equal",
        "after folding, so that more bindings are equal; parallel branches then share an input",
    ),
    Step(
        "merge-consecutive",
        "after equal branches are merged, so that values have fewer readers",
    ),
)
# training needs the original parameters: no weight may be folded, merged or concatenated
_TRAINABLE = (
    *_CLEAN[:2],
    Step("remove-noops{floats=false}", "a factor of 1 may be a parameter"),
    Step("fold-constant{floats=false}", "shapes, sizes and indices only"),
    Step("simplify-sizes", "sizes are not weights"),
    Step(
        "merge-equal{floats=false}",
        "after folding, so that more bindings are equal; biases of zeros stay apart",
    ),
    Step(
        "simplify-transpose{floats=false}", "fewer and smaller transposes between unchanged weights"
    ),
    Step("remove-unused", "removes shape arithmetic that was folded"),
)
_BACKWARD = Step(
    "backward-fold-scale-axis",
    "before forward: a scale of any sign can move into the product above it",
)
_FORWARD = Step("forward-fold-scale-axis", "scales that remain above a product")
_FOLDED = (
    Step("fold-constant", "weight * scale becomes the weight"),
    Step("fold-bias", "after the scales, which stand between shifts and their products"),
)
_RAISED = (
    Step(
        "raise-composites",
        "before scales and sums change the chains; its emissions are merged below",
    ),
    Step("merge-equal", "merges the masks and tables that were emitted for each layer"),
)
_STATISTICS = Step("fold-constant", "the statistics become one scale and one shift")
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
_SELECTED = Step(
    "select-rows", "behind composites, of which a row is that of one operator; before sums change"
)
_LOWERED = Step(
    "lower-composites", "replaces operators whose kernels are slower than the equivalent chains"
)
# no scale moves forward, because onnxruntime looks for the multiply at the end of an RMS
# normalisation
_INFERENCE_THAT_PAYS = (
    Step(
        "simplify-inference{only_after_products=true}",
        "only after products, which absorb it; elsewhere it would be two kernels in place of one",
    ),
    _STATISTICS,
    Step(
        "backward-fold-scale-axis{scalars=true}",
        "scales of any sign, and single factors such as that of attention's queries",
    ),
    *_FOLDED,
)
FIRST_OF_FORMS = "divide-by-root"
_LAST = (
    Step(
        FIRST_OF_FORMS, "onnxruntime then runs an RMS normalisation as one kernel in place of five"
    ),
    Step(
        "flatten-products",
        "last, after all rules that match MatMul: onnxruntime would emit these Gemms itself, with "
        "two Reshapes each",
    ),
    Step("sink-constants", "after all passes that share or fold constants"),
    Step(
        "merge-equal",
        "parallel branches share the Reshape of their input, and a branch the constants that sank "
        "into it",
    ),
    Step("accumulate-gemms", "after combining: a Gemm that adds another is not a parallel branch"),
)
_PRODUCTS = (
    Step(
        "simplify-transpose",
        "before combining, so that right operands are weights, not transposes of weights",
    ),
    Step(
        "combine-parallel-gemm",
        "after the scales, so that branches that differed only by a factor are alike; a MatMul "
        "beside Gemms is merged with them",
    ),
    Step("combine-parallel-matmul", "the same for MatMul, of which no Gemm is beside"),
    Step("combine-parallel-conv", "the same for Conv"),
    Step("transpose-after-concat", "combining emits Concats of transposes"),
    Step("remove-unused", "removes the separate weights of combined products"),
)
_ARITHMETIC = Step(
    "simplify-arithmetic{exact=false}", "before scales move, so that factors are combined first"
)
_EVERYWHERE = tuple(
    Step(f"{s.item}{{merge=always}}" if "parallel" in s.item else s.item, s.why) for s in _PRODUCTS
)

DESCRIBED: dict[str, Preset] = {
    "clean": Preset("removes and folds only: products stay, no weight is recomputed", _CLEAN),
    "default": Preset(
        "every rewrite that the cost rules allow: not slower than the input",
        (
            *_CLEAN,
            *_RAISED,
            _SELECTED,
            _LOWERED,
            *_INFERENCE_THAT_PAYS,
            *_PRODUCTS[:-1],
            *_LAST,
            _PRODUCTS[-1],
        ),
    ),
    "inference": Preset(
        "removes BatchNormalization and Dropout, also those in training mode, folds scales into "
        "weights; products stay",
        (*_CLEAN, *_RAISED, *_INFERENCE, _PRODUCTS[-1]),
    ),
    "canonical": Preset(
        "every rewrite without cost rules: equal computations become equal graphs",
        (*_CLEAN, *_RAISED, _ARITHMETIC, *_INFERENCE, *_EVERYWHERE),
    ),
    "training-safe": Preset(
        "every weight keeps its name, shape and bytes; BatchNormalization and Dropout stay",
        _TRAINABLE,
    ),
}
PRESETS: dict[str, tuple[str, ...]] = {
    name: tuple(step.item for step in preset.steps) for name, preset in DESCRIBED.items()
}
