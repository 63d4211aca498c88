"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnx import ModelProto
from onnxgrad.ir.load import M
from onnxgrad.ir.load import ModelLike
from onnxgrad.jobs.gradient_declarations import Keeps
from onnxgrad.jobs.gradient_declarations import Targets
from onnxgrad.jobs.kinds import Checks
from onnxgrad.jobs.kinds import Constants
from onnxgrad.jobs.kinds import Entries
from onnxgrad.jobs.kinds import Extends
from onnxgrad.jobs.kinds import InputKind
from onnxgrad.jobs.kinds import LossLike
from onnxgrad.jobs.kinds import Masks
from onnxgrad.jobs.kinds import Memory
from onnxgrad.jobs.kinds import Names
from onnxgrad.jobs.kinds import NamesByCommas
from onnxgrad.jobs.kinds import NamesOrAxes
from onnxgrad.jobs.kinds import NewNodes
from onnxgrad.jobs.kinds import NewSymbols
from onnxgrad.jobs.kinds import Pairs
from onnxgrad.jobs.kinds import PerOutput
from onnxgrad.jobs.kinds import Places
from onnxgrad.jobs.kinds import Providers
from onnxgrad.jobs.kinds import Ranges
from onnxgrad.jobs.kinds import Renames
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.jobs.kinds import Seed
from onnxgrad.jobs.kinds import Seeds
from onnxgrad.jobs.kinds import Several
from onnxgrad.jobs.kinds import Sizes
from onnxgrad.jobs.kinds import StepTexts
from onnxgrad.jobs.kinds import Text
from onnxgrad.jobs.kinds import Threads
from onnxgrad.jobs.kinds import Values
from onnxgrad.jobs.surgery.lift import Lifted
from onnxgrad.options import Range
from onnxgrad.transform.gradient_split import Linearized
from onnxgrad.verify.feeds.proof_cases import Inputs
from typing import Annotated
from typing import Any
from typing import IO
from typing import Literal
from typing import overload
import os

@overload
def extract(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    inputs: NamesByCommas | None = None,
    outputs: NamesByCommas | None = None,
    *,
    provider: Providers = 'cpu',
    dims: Sizes | None = None,
    seed: Seed = 0,
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def extract(
    model: M,
    inputs: NamesByCommas | None = None,
    outputs: NamesByCommas | None = None,
    *,
    provider: Providers = 'cpu',
    dims: Sizes | None = None,
    seed: Seed = 0,
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def extract(
    model: ModelLike,
    inputs: NamesByCommas | None = None,
    outputs: NamesByCommas | None = None,
    *,
    provider: Providers = 'cpu',
    dims: Sizes | None = None,
    seed: Seed = 0,
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
def linearize(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_grad',
    dims: Sizes | None = None,
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    keep: Keeps = 'auto',
) -> Linearized: ...
@overload
def hessian(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_{}_hessian',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    final: bool = False,
) -> ModelProto: ...
@overload
def hessian(
    model: M,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_{}_hessian',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    final: bool = False,
) -> M: ...
@overload
def hessian(
    model: ModelLike,
    wrt: Names | None = None,
    target: Targets | None = None,
    *,
    names: str = '{}_{}_hessian',
    stop: Names | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    loss: LossLike | None = None,
    final: bool = False,
) -> Any: ...
@overload
def open_batch(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    inputs: NamesByCommas | None = None,
    *,
    batch: Several | None = None,
    open: Places | None = None,
    follow: Names = (),
    extend: Extends | None = None,
    reference: Names = (),
    symbol: Text = 'batch',
    along: Literal['auto', 'refuse', 'warn'] = 'auto',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def open_batch(
    model: M,
    inputs: NamesByCommas | None = None,
    *,
    batch: Several | None = None,
    open: Places | None = None,
    follow: Names = (),
    extend: Extends | None = None,
    reference: Names = (),
    symbol: Text = 'batch',
    along: Literal['auto', 'refuse', 'warn'] = 'auto',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def open_batch(
    model: ModelLike,
    inputs: NamesByCommas | None = None,
    *,
    batch: Several | None = None,
    open: Places | None = None,
    follow: Names = (),
    extend: Extends | None = None,
    reference: Names = (),
    symbol: Text = 'batch',
    along: Literal['auto', 'refuse', 'warn'] = 'auto',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
@overload
def vmap(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    inputs: NamesOrAxes | None = None,
    *,
    axis: Annotated[int, Range(0, 63)] = 0,
    symbol: Text = 'rows',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> ModelProto: ...
@overload
def vmap(
    model: M,
    inputs: NamesOrAxes | None = None,
    *,
    axis: Annotated[int, Range(0, 63)] = 0,
    symbol: Text = 'rows',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> M: ...
@overload
def vmap(
    model: ModelLike,
    inputs: NamesOrAxes | None = None,
    *,
    axis: Annotated[int, Range(0, 63)] = 0,
    symbol: Text = 'rows',
    provider: Providers = 'cpu',
    feeds: Annotated[Inputs | None, InputKind()] = None,
    dims: Sizes | None = None,
    seed: Seed = 0,
    allow_same: Names = (),
    verify: bool = True,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
) -> Any: ...
@overload
def set_metadata(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    values: Entries | None = None,
    *,
    unset: Names = (),
    ranges: Ranges | None = None,
    strip: str | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    producer_name: str | None = None,
    producer_version: str | None = None,
    domain: str | None = None,
    model_version: Annotated[int, Range(-2 ** 63, 2 ** 63 - 1)] | None = None,
    doc_string: str | None = None,
) -> ModelProto: ...
@overload
def set_metadata(
    model: M,
    values: Entries | None = None,
    *,
    unset: Names = (),
    ranges: Ranges | None = None,
    strip: str | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    producer_name: str | None = None,
    producer_version: str | None = None,
    domain: str | None = None,
    model_version: Annotated[int, Range(-2 ** 63, 2 ** 63 - 1)] | None = None,
    doc_string: str | None = None,
) -> M: ...
@overload
def set_metadata(
    model: ModelLike,
    values: Entries | None = None,
    *,
    unset: Names = (),
    ranges: Ranges | None = None,
    strip: str | None = None,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    producer_name: str | None = None,
    producer_version: str | None = None,
    domain: str | None = None,
    model_version: Annotated[int, Range(-2 ** 63, 2 ** 63 - 1)] | None = None,
    doc_string: str | None = None,
) -> Any: ...
@overload
def edit(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    bind: Constants | None = None,
    set: Values | None = None,
    free: Names = (),
    rename: Renames | None = None,
    rename_node: NewNodes | None = None,
    rename_dim: NewSymbols | None = None,
    add_output: Names = (),
    drop_output: Names = (),
    mode: Literal['inference'] | None = None,
    loss: LossLike | None = None,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
) -> ModelProto: ...
@overload
def edit(
    model: M,
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    bind: Constants | None = None,
    set: Values | None = None,
    free: Names = (),
    rename: Renames | None = None,
    rename_node: NewNodes | None = None,
    rename_dim: NewSymbols | None = None,
    add_output: Names = (),
    drop_output: Names = (),
    mode: Literal['inference'] | None = None,
    loss: LossLike | None = None,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
) -> M: ...
@overload
def edit(
    model: ModelLike,
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    bind: Constants | None = None,
    set: Values | None = None,
    free: Names = (),
    rename: Renames | None = None,
    rename_node: NewNodes | None = None,
    rename_dim: NewSymbols | None = None,
    add_output: Names = (),
    drop_output: Names = (),
    mode: Literal['inference'] | None = None,
    loss: LossLike | None = None,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
@overload
def join(
    a: str | os.PathLike[str] | bytes | IO[bytes],
    b: ModelLike,
    *,
    map: Pairs | None = None,
    prefix: str = '',
    keep_output: Names = (),
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
) -> ModelProto: ...
@overload
def join(
    a: M,
    b: ModelLike,
    *,
    map: Pairs | None = None,
    prefix: str = '',
    keep_output: Names = (),
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
) -> M: ...
@overload
def join(
    a: ModelLike,
    b: ModelLike,
    *,
    map: Pairs | None = None,
    prefix: str = '',
    keep_output: Names = (),
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
@overload
def preprocess(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
) -> ModelProto: ...
@overload
def preprocess(
    model: M,
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
) -> M: ...
@overload
def preprocess(
    model: ModelLike,
    before: StepTexts | None = None,
    after: StepTexts | None = None,
    *,
    verify: bool = True,
    config: str | os.PathLike[str] | None = None,
    keep_output: Names = (),
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
def lift(
    model: ModelLike,
    weights: Names = (),
    *,
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
) -> Lifted: ...
@overload
def rebase(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    weights: Any,
    *,
    map: Pairs | None = None,
    record: str | os.PathLike[str] | Any | None = None,
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
) -> ModelProto: ...
@overload
def rebase(
    model: M,
    weights: Any,
    *,
    map: Pairs | None = None,
    record: str | os.PathLike[str] | Any | None = None,
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
) -> M: ...
@overload
def rebase(
    model: ModelLike,
    weights: Any,
    *,
    map: Pairs | None = None,
    record: str | os.PathLike[str] | Any | None = None,
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
