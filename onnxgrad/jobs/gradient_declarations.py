"""The options of gradients and of products with derivatives. Imports only what `--help` needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.groups import PRODUCTS, SPLIT, Bounds, Limits, Running, verified
from onnxgrad.jobs.kinds import Commas, Instance, LossLike, Names, Positive, Seed, Sizes, Word
from onnxgrad.vocabulary import POLICIES

if TYPE_CHECKING:
    from onnxgrad.grad.checkpointing.recomputation import Checkpoint


class _Marks(Word):
    """A policy, a memory budget, or marks of values, which become a table."""

    def join(self, marks: Sequence[str], _: str) -> Any:
        if len(marks) == 1 and (marks[0] in POLICIES or marks[0][:1].isdigit()):
            return marks[0]
        found: dict[str, list[Any]] = {"start": [], "end": []}
        for mark in marks:
            kind, colon, rest = mark.partition(":")
            if not colon or kind not in found:
                kind, rest = "start", mark
            name, at, reader = rest.partition("@")
            found[kind].append((name, reader) if at else name)
        return found


class _Kept(Commas):
    """A policy, a size in bytes, or names, which become a tuple."""

    def join(self, values: Sequence[str], flag: str) -> Any:
        names = super().join(values, flag)
        return names[0] if len(names) == 1 else names


Keeps: TypeAlias = Annotated[str | int | Sequence[str], _Kept()]
Checkpoints: TypeAlias = (
    "Annotated[Annotated[Checkpoint, Instance('Checkpoint')] | Mapping[str, Sequence[Any]]"
    " | Sequence[str] | str | int, _Marks()]"
)
Targets: TypeAlias = Annotated[str | int | Sequence[str | int], Word()]


# ---- what is differentiated ---------------------------------------------------------------------


@frozen(kw_only=True)
class Chosen(Limits):
    """The target of differentiation and the values with respect to which it is differentiated."""

    title: ClassVar[str] = "gradient"

    wrt: Names | None = option(
        None,
        "values to differentiate with respect to: inputs, weights, intermediate values; "
        "params: every weight that reaches the target (`inspect --weights` lists them); !GLOB "
        "excludes names; separate several by commas (default: every floating-point input)",
        metavar="NAME|GLOB",
        positional=True,
    )
    target: Targets | None = option(
        None,
        "value to differentiate (default: the only output); several targets, and the elements of "
        "a part such as 'logits[:,7]', are summed",
        metavar="NAME|INDEX",
        positional=True,
    )


@frozen(kw_only=True)
class Losses(Declaration):
    """A loss to add to the model before it is differentiated."""

    title: ClassVar[str] = "gradient"

    loss: LossLike | None = option(
        None,
        "first add this loss, as `train-step` does: NAME{option=value,...}, such as cross_entropy; "
        "its labels become inputs, and the loss is the target",
        metavar="LOSS",
    )


@frozen(kw_only=True)
class Checkpointing(Declaration):
    """Recomputation in place of stored values."""

    title: ClassVar[str] = "gradient"

    checkpoint: Checkpoints | None = option(
        None,
        "recompute values instead of keeping them: auto, as few as a memory budget such as 512MB "
        "requires, all but products of matrices (products) or all (nothing), or at the marks "
        "[start:|end:]NAME[@READER]",
        metavar="POLICY|SIZE|MARK",
    )


@frozen(kw_only=True)
class Stopping(Chosen):
    """The target, the inputs and the stop values of a differentiation."""

    title: ClassVar[str] = "gradient"

    stop: Names | None = option(
        None,
        "treat these computed values as constants (stop-gradient)",
        metavar="NAME|GLOB",
    )


@frozen(kw_only=True)
class Request(Stopping, Checkpointing):
    """The gradient to form."""

    title: ClassVar[str] = "gradient"

    adjoint: Literal["auto", "ones", "input"] = option(
        "auto",
        "ones: start with ones, for scalar targets; input: targets of any shape, whose adjoints "
        "become graph inputs; auto (default): ones for a scalar target, else input",
    )


@frozen(kw_only=True)
class Formulas(Declaration):
    """The formulas of a gradient, and where it is an estimate."""

    title: ClassVar[str] = "gradient"

    form: Literal["fast", "small"] = option(
        "fast",
        "formulas of convolutions, normalizations and sums over a batch: fast (default), or small "
        "(the fewest nodes)",
    )
    autocast: Literal["bfloat16", "float16"] | None = option(
        None,
        "compute products of matrices and convolutions, and their gradients, in this dtype; all "
        "other values stay in float32 (training in float16: with --loss-scale)",
    )
    ste: bool = option(
        False,
        "pass gradients straight through QuantizeLinear-DequantizeLinear pairs: an estimate, "
        "which finite differences cannot check",
    )


@frozen(kw_only=True)
class GradientForm(Request, Formulas):
    """How the gradient is written."""

    title: ClassVar[str] = ""

    names: str = option("{}_grad", "names of the gradients (default: {}_grad)", metavar="PATTERN")
    safe: bool = option(
        True,
        "keep NaN where an exporter wrote a function of PyTorch in parts: the root of a sum of "
        "squares at 0, the branch that a Where does not select (default: 0 in its place)",
        flag="--no-safe",
    )
    simplify: bool = option(True, "do not simplify the gradient graph", flag="--no-simplify")


@frozen(kw_only=True)
class PerSample(Declaration):
    """The derivative of each sample."""

    title: ClassVar[str] = "gradient"

    per_sample: bool = option(
        False,
        "one gradient or Jacobian for each sample of the batch; gradients of weights get a first "
        "axis",
    )


@frozen(kw_only=True)
class Finality(Declaration):
    """Whether the derivative may be derived again."""

    title: ClassVar[str] = "gradient"

    final: bool = option(
        False,
        "compute constants from weights now: fewer nodes, but the file can then be neither "
        "differentiated by a weight, nor trained, nor given other weights",
    )


@frozen(kw_only=True)
class GradientOptions(GradientForm, Losses, PerSample, Finality):
    job: ClassVar[str] = "gradient"
    title: ClassVar[str] = ""


@frozen(kw_only=True)
class Jacobians(Declaration):
    """How a Jacobian is formed."""

    title: ClassVar[str] = PRODUCTS

    mode: Literal["auto", "forward", "reverse"] = option(
        "auto",
        "with --jacobian: by columns (forward) or rows (reverse); auto (default): whichever are "
        "fewer",
    )


@frozen(kw_only=True)
class JacobianOptions(Stopping, Losses, PerSample, Jacobians, Finality):
    job: ClassVar[str] = "jacobian"

    names: str = option("{}_by_{}", "names of the Jacobians, by target and value")


@frozen(kw_only=True)
class Splitting(Declaration):
    title: ClassVar[str] = SPLIT

    keep: Keeps = option(
        "auto",
        "with --split: auto (default) keeps the fewest bytes from which cheap operators compute "
        "the rest again; everything: nothing is computed again; products: matrix products; "
        "nothing: inputs alone; a size such as 64MB; or names or globs of values "
        "and operators, such as MatMul",
        metavar="POLICY|SIZE|NAMES",
    )


@frozen(kw_only=True)
class LinearizeOptions(Stopping, Losses, Splitting):
    job: ClassVar[str] = "linearize"

    names: str = option("{}_grad", "names of adjoints and gradients")
    dims: Sizes | None = option(None, "sizes of symbolic dimensions by which bytes are counted")


@frozen(kw_only=True)
class JvpOptions(Stopping, Losses, Finality):
    job: ClassVar[str] = "jvp"

    names: str = option("{}_tangent", "names of the tangents")


@frozen(kw_only=True)
class HessianProductOptions(Stopping, Losses, Finality):
    job: ClassVar[str] = "hessian_vector_product"

    names: str = option("{}_hvp", "names of the products")
    tangents: str = option("{}_tangent", "names of the new inputs")


@frozen(kw_only=True)
class HessianOptions(Stopping, Losses, Finality):
    job: ClassVar[str] = "hessian"

    names: str = option("{}_{}_hessian", "names of the Hessians, by both values")


@frozen(kw_only=True)
class MarkOptions(Chosen):
    job: ClassVar[str] = "mark_checkpoints"

    checkpoint: Checkpoints = option(
        "auto", "auto, a memory budget such as 512MB, or marks [start:|end:]NAME[@READER]"
    )


# ---- how it is checked --------------------------------------------------------------------------


@frozen(kw_only=True)
class Checked(Running):
    """How a derivative is checked."""

    title: ClassVar[str] = "proof"

    allow_empty: Names = option(
        (),
        "accept that the gradient of this value is 0 everywhere; if all gradients are 0, nothing "
        "is proved (exit code 1)",
        metavar="NAME",
    )
    seed: Seed = option(0, "seed of generated values and directions (default: 0)", metavar="N")


@frozen(kw_only=True)
class Tolerated(Checked):
    """The tolerance of a derivative."""

    title: ClassVar[str] = "check"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(("Limits", "Running", "Checked"), "check")

    tolerance: Positive | None = option(
        None,
        "relative tolerance (default: by the float types in which each gradient is computed)",
        metavar="T",
    )


@frozen(kw_only=True)
class CheckGradientOptions(GradientForm, Losses, Tolerated):
    job: ClassVar[str] = "check_gradient"
    title: ClassVar[str] = "check"


@frozen(kw_only=True)
class CheckProductOptions(Stopping, Losses, Jacobians, Tolerated):
    job: ClassVar[str] = "check_product"

    of: Literal["jvp", "hvp", "jacobian", "hessian", "adj", "fwd"] = option(
        REQUIRED, "what is checked"
    )


@frozen(kw_only=True)
class GradOptions(GradientForm, Losses, PerSample, Finality, Jacobians, Splitting, Checked, Bounds):
    job: ClassVar[str] = "grad"
    title: ClassVar[str] = ""
    titles: ClassVar[Mapping[str, str]] = {"Limits": "proof", "Running": "proof"}
    words: ClassVar[Mapping[str, str]] = {"BOUNDS": "by the float types"}

    verify: bool = verified("numeric check")
