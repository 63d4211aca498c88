"""Every operator's inferred shape against the run one: the backend suite's cases with small operands constant, so that
shapes which they decide are inferred, and then with each optional attribute and each trailing optional operand left out,
so that defaults are. (`test_at_load` has the cases as they are.)
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir import attributes
from onnxgrad.ir.load import load
from onnxgrad.ir.type_inference.whole_model import _light_tensor
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.verify.running.session import run
from tests.backend_suite import Case, clamp_ir, usable
from tests.backend_suite import case as backend_case
from tests.suite_table import any_opset


def variants(case: Case) -> Iterator[tuple[str, ModelProto]]:
    """The case's model, when it is one node, without any declared shape of a result: whole, and with one thing less."""
    bare = ModelProto()
    bare.CopyFrom(case.model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    if len(bare.graph.node) != 1:
        return
    bare.ir_version = max(bare.ir_version, 4)
    for value in list(bare.graph.input):
        array = case.inputs.get(value.name)
        if (
            isinstance(array, np.ndarray)
            and array.size <= 16
            and array.dtype.name in ("int64", "int32", "float32")
        ):
            bare.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            bare.graph.input.remove(value)
    if bare.graph.initializer:
        yield "with constants", bare
    node = bare.graph.node[0]
    opset = next((o.version for o in bare.opset_import if o.domain in ("", "ai.onnx")), 0)
    schema = attributes.schema(node.op_type, opset, "") if node.domain in ("", "ai.onnx") else None
    if schema is None:
        return
    for i, a in enumerate(node.attribute):
        if not schema.attributes[a.name].required:
            less = ModelProto()
            less.CopyFrom(bare)
            del less.graph.node[0].attribute[i]
            yield f"without {a.name}", less
    for count in range(schema.min_input, len(node.input)):
        less = ModelProto()
        less.CopyFrom(bare)
        del less.graph.node[0].input[count:]
        yield f"with {count} operands", less


def computed(case: Case, model: ModelProto) -> list[Any] | None:
    """The outputs in onnxruntime, or else in onnx's reference; None where neither runs the model."""
    read = {name for node in model.graph.node for name in node.input}
    read -= {tensor.name for tensor in model.graph.initializer}
    feeds = {name: value for name, value in case.inputs.items() if name in read}
    used = ModelProto()
    used.CopyFrom(model)
    for i in reversed(range(len(used.graph.input))):
        if used.graph.input[i].name not in feeds:
            del used.graph.input[i]
    try:
        found = run(clamp_ir(used), feeds, timeout=60.0)
        return [found[o.name] for o in model.graph.output]
    except OnnxgradError:
        pass
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(used).run(None, feeds))
    except Exception:  # noqa: BLE001  # what it lacks or gets wrong it says in many ways
        return None


def misfit(var: Var, value: Any, sizes: dict[str, int]) -> str:
    """What of a value's type is not that of the computed array; '' when all is."""
    if (
        not isinstance(var.type, TensorType)
        or not isinstance(value, np.ndarray)
        or var.type.shape is None
    ):
        return ""
    shape = var.type.shape
    wrong = len(shape) != value.ndim
    for d, size in zip(shape, value.shape):
        wrong = wrong or (isinstance(d, int) and d != size)
        wrong = wrong or (isinstance(d, str) and sizes.setdefault(d, size) != size)
    return f"{var.type} is {list(value.shape)}" if wrong else ""


def form(model: ModelProto) -> str:
    """What two cases have in common that infer alike: operator, versions, attributes by name, operands by rank."""
    node = model.graph.node[0]
    ranks = [len(i.type.tensor_type.shape.dim) for i in model.graph.input if i.name in node.input]
    ranks += [len(t.dims) for t in model.graph.initializer if t.name in node.input]
    named = sorted(a.name for a in node.attribute)
    return f"{node.op_type} {model.opset_import} {named} {[bool(n) for n in node.input]} {len(node.output)} {ranks}"


def sweep(cases: list[Case], *, once: bool) -> tuple[dict[str, str], Counter[str]]:
    """Where a shape is not the computed one, and how many models were compared; `once`: one of each form."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for case in cases:
        for what, model in variants(case):
            if once and form(model) in seen:
                continue
            seen.add(form(model))
            try:
                block = load(model).main
            except OnnxgradError:
                counts["refused"] += 1
                continue
            values = computed(case, model)
            if values is None:
                counts["runs nowhere"] += 1
                continue
            counts["compared"] += 1
            sizes: dict[str, int] = {}
            for v in block.inputs:
                misfit(v, case.inputs.get(v.name), sizes)
            for var, value in zip(block.outputs, values, strict=True):
                wrong = misfit(var, value, sizes)
                if wrong:
                    found[f"{case.name} {what}"] = f"{model.graph.node[0].op_type}: {wrong}"
    return found, counts


@pytest.mark.slow
def test_inferred_shapes_are_the_run_ones() -> None:
    with any_opset():
        found, counts = sweep(list(usable()), once=True)
    assert found == {}
    assert counts["compared"] >= 900


def test_trees_behind_an_operator_that_onnx_does_not_know() -> None:
    """onnx 1.23 dies of SIGSEGV where it infers this, which would end our own process."""
    case = backend_case("test_ai_onnx_ml_tree_ensemble_set_membership")
    assert load(case.model).main.outputs[0].rank == 2
    model = ModelProto()
    model.CopyFrom(case.model)
    (node,) = model.graph.node
    made = onnx.helper.make_node("Same", [node.input[0]], ["same"], domain="my.domain")
    node.input[0] = "same"
    model.graph.node.insert(0, made)
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    assert load(model).main.bindings


@pytest.mark.parametrize(("count", "whole"), [(0, True), (1, True), (512, True), (513, False)])
def test_tensors_of_more_than_512_elements_are_typed_without_their_data(
    count: int, whole: bool
) -> None:
    tensor = onnx.numpy_helper.from_array(np.zeros(count, np.uint8), "t")
    light = _light_tensor(tensor)
    assert (light is tensor) is whole
    assert (light.name, light.data_type, light.dims) == ("t", tensor.data_type, [count])
    assert whole or not light.raw_data
