"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from collections.abc import Mapping
from collections.abc import Sequence
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.ci.outcome import CiReport
from onnxgrad.jobs.declarations import Edits
from onnxgrad.jobs.declarations import Half
from onnxgrad.jobs.declarations import Other
from onnxgrad.jobs.gradient_declarations import Checkpoints
from onnxgrad.jobs.gradient_declarations import LossLike
from onnxgrad.jobs.gradient_declarations import Targets
from onnxgrad.jobs.inspection.contents import Summary
from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.jobs.kinds import Checks
from onnxgrad.jobs.kinds import Count
from onnxgrad.jobs.kinds import InputKind
from onnxgrad.jobs.kinds import Lints
from onnxgrad.jobs.kinds import Masks
from onnxgrad.jobs.kinds import Memory
from onnxgrad.jobs.kinds import Names
from onnxgrad.jobs.kinds import Pairs
from onnxgrad.jobs.kinds import PerOutput
from onnxgrad.jobs.kinds import Positive
from onnxgrad.jobs.kinds import Provider
from onnxgrad.jobs.kinds import Providers
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.jobs.kinds import Seed
from onnxgrad.jobs.kinds import Seeds
from onnxgrad.jobs.kinds import Several
from onnxgrad.jobs.kinds import Sizes
from onnxgrad.jobs.kinds import Text
from onnxgrad.jobs.kinds import Threads
from onnxgrad.jobs.reduce import Check
from onnxgrad.options import Range
from onnxgrad.passes.base import Pass
from onnxgrad.passes.user_laws import Law
from onnxgrad.verify.bench import BenchReport
from onnxgrad.verify.feeds.proof_cases import Inputs
from onnxgrad.verify.report import Report
from onnxgrad.vocabulary import Merge
from onnxgrad.vocabulary import Preset
from onnxgrad.vocabulary import Runtime
from typing import Annotated
from typing import Any
from typing import Literal
import os

def optimize(
    model: ModelLike,
    *,
    report: bool = False,
    preset: Preset = 'default',
    passes: str | Sequence[str | Pass | Law] | None = None,
    without: Names = (),
    merge: Merge = 'auto',
    target_opset: Several | None = None,
    for_: Runtime | None = None,
    allow_growth: bool = False,
    inline: Names = (),
    recipe: str | os.PathLike[str] | None = None,
    fix_dims: Sizes | None = None,
    infer_shapes: bool = False,
    strip_metadata: str | None = None,
    join: Other | None = None,
    before: Edits | None = None,
    after: Edits | None = None,
    float16: Half = False,
    metadata: Mapping[str, str] | None = None,
    lift: bool | Names = False,
    lint: Lints | None = None,
    max_rewrites: Count | None = None,
    explain: bool = False,
    print_after: Names = (),
    tune: bool | float | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify: bool | Literal['each', 'only each'] = True,
    exact: bool = False,
    against: Names = (),
    seeds: Seeds = (0, 1),
    checks: Checks = ('float64', 'onnxruntime'),
    coverage: str | float | None = None,
    allow_empty: Names = (),
    excuse: Masks | None = None,
    provider: Providers = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    atol: PerOutput | None = None,
    rtol: PerOutput | None = None,
    metric: Names | None = None,
) -> Any: ...
def convert_opset(
    model: ModelLike,
    to: Several,
    *,
    report: bool = False,
    verify: bool = True,
    seeds: Seeds = (0, 1),
    checks: Checks = ('float64', 'onnxruntime'),
    coverage: str | float | None = None,
    allow_empty: Names = (),
    excuse: Masks | None = None,
    provider: Providers = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    atol: PerOutput | None = None,
    rtol: PerOutput | None = None,
    metric: Names | None = None,
) -> Any: ...
def float16(
    model: ModelLike,
    *,
    report: bool = False,
    keep: Names = (),
    convert: Names = (),
    io: bool = False,
    verify: bool = True,
    seeds: Seeds = (0, 1),
    checks: Checks = ('float64', 'onnxruntime'),
    coverage: str | float | None = None,
    allow_empty: Names = (),
    excuse: Masks | None = None,
    provider: Providers = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    atol: PerOutput | None = None,
    rtol: PerOutput | None = None,
    metric: Names | None = None,
) -> Any: ...
def verify(
    a: ModelLike,
    b: ModelLike | None = None,
    *,
    weights: Literal['auto', 'same', 'rounded'] = 'auto',
    float64_budget: Positive = 20.0,
    map: Pairs | None = None,
    expect: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    against: Names = (),
    layers: bool = False,
    exact: bool = False,
    save: str | os.PathLike[str] | None = None,
    seeds: Seeds = (0, 1),
    checks: Checks = ('float64', 'onnxruntime'),
    coverage: str | float | None = None,
    allow_empty: Names = (),
    excuse: Masks | None = None,
    provider: Providers = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    atol: PerOutput | None = None,
    rtol: PerOutput | None = None,
    metric: Names | None = None,
) -> Report: ...
def inspect(
    model: ModelLike,
    *,
    dims: Sizes | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Summary: ...
def diff(
    a: ModelLike,
    b: ModelLike,
    *,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Diff: ...
def bench(
    models: ModelLike | Sequence[ModelLike] | Mapping[str, ModelLike],
    *,
    seed: Seed = 0,
    rounds: Annotated[int, Range(1)] = 20,
    seconds: Seconds = 2.0,
    optimize: bool = True,
    require: Positive | None = None,
    provider: Provider = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> BenchReport: ...
def ci(
    recipe: str | os.PathLike[str] | None = None,
    *,
    update: bool = False,
    only: Names = (),
    all: bool = False,
    prune: bool = False,
    record: bool = False,
    jobs: Several = 1,
    dask: Text | None = None,
    keep_going: bool = False,
    models: list[Text] | None = None,
    out: Text | None = None,
    lock: Text | None = None,
    plugins: Names = (),
    custom_ops: Names = (),
) -> CiReport: ...
def reduce(
    model: ModelLike,
    check: Check,
    *,
    report: bool = False,
    interesting_exit: Count | None = None,
    says: str = '',
    check_timeout: Seconds = 60.0,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
def gradient(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_grad',
    ste: bool = False,
    safe: bool = True,
    simplify: bool = True,
    adjoint: Literal['auto', 'ones', 'input'] = 'ones',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    checkpoint: Checkpoints | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    loss: LossLike | None = None,
    per_sample: bool = False,
    final: bool = False,
) -> Any: ...
def jvp(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_tangent',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    final: bool = False,
) -> Any: ...
def hessian_vector_product(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_hvp',
    tangents: str = '{}_tangent',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    final: bool = False,
) -> Any: ...
def jacobian(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_by_{}',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    per_sample: bool = False,
    mode: Literal['auto', 'forward', 'reverse'] = 'auto',
    final: bool = False,
) -> Any: ...
def mark_checkpoints(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    checkpoint: Checkpoints = 'auto',
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
def check_gradient(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_grad',
    ste: bool = False,
    safe: bool = True,
    simplify: bool = True,
    adjoint: Literal['auto', 'ones', 'input'] = 'auto',
    stop: Names | None = None,
    loss: LossLike | None = None,
    tolerance: Positive | None = None,
    allow_empty: Names = (),
    seed: Seed = 0,
    provider: Provider = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    checkpoint: Checkpoints | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
) -> GradientReport: ...
def check_product(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    of: Literal['jvp', 'hvp', 'jacobian', 'hessian', 'adj', 'fwd'],
    stop: Names | None = None,
    loss: LossLike | None = None,
    mode: Literal['auto', 'forward', 'reverse'] = 'auto',
    tolerance: Positive | None = None,
    allow_empty: Names = (),
    seed: Seed = 0,
    provider: Provider = 'cpu',
    inputs: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    threads: Threads = 1,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> GradientReport: ...
