"""The operators of a model, and how resources are bound to their tensors."""

from __future__ import annotations

import dataclasses
import math

from dml_jax.directml._compile import CompiledOperator, compile_operator
from dml_jax.directml._graph import compile_graph
from dml_jax.directml._graph_descs import (
    GraphDesc,
    InputGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
)
from dml_jax.directml._operators import OperatorDesc, camel
from dml_jax.directml._tensor import BufferTensorDesc, extent, packed_strides
from dml_jax.directml._types import (
    MINIMUM_BUFFER_TENSOR_ALIGNMENT,
    ExecutionFlags,
    OperatorType,
    TensorFlags,
)
from dml_jax.directml.dxdispatch._descs import parse_desc
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._resources import Budget, Resource

PREFIX = "DML_OPERATOR_"


@dataclasses.dataclass(frozen=True)
class View:
    """A range of a resource that is bound to a tensor, from an offset in bytes."""

    resource: str
    offset: int


@dataclasses.dataclass(frozen=True)
class Dispatchable:
    """An operator, and the inputs that it owns: views by the names of tensors."""

    operator: CompiledOperator
    owned: dict[str, View]


def parse_dispatchable(
    entry: Entry, resources: dict[str, Resource], budget: Budget
) -> Dispatchable:
    """An operator, validated, and the inputs that are bound before it runs."""
    desc_names = ("desc", "Desc")
    own = ("dmlCompileType", "executionFlags", "bindings")
    members = dict(entry.named())
    type_name = next((name for name in ("Type", "type") if name in members), None)
    if type_name is None:
        raise entry.refused("have a member `type`")
    operator = members[type_name].member_of(OperatorType, PREFIX)
    described = next((members[name] for name in desc_names if name in members), None)
    if all(name in members for name in desc_names):
        raise entry.refused("have one of the members `desc` and `Desc`")
    if described is None:  # the members of the description stand among the others
        inline = {k: v.value for k, v in members.items() if k not in (type_name, *own)}
        described = Entry(inline, entry.place)
    else:
        entry.members(optional=(type_name, *desc_names, *own))
    desc = parse_desc(operator, described)
    _require_expanded(described, desc, budget)
    if "executionFlags" in members:
        members["executionFlags"].flags_of(ExecutionFlags, "DML_EXECUTION_FLAG_")
    compiled = _compiled(entry, members, desc)
    owned = {name: tensor for name, tensor in compiled.inputs if is_owned(tensor)}
    bindings = members.get("bindings", Entry({}, f"{entry.place}.bindings"))
    return Dispatchable(compiled, parse_views(bindings, owned, resources))


def is_owned(tensor: BufferTensorDesc) -> bool:
    """Whether a tensor is bound once, before its operator runs."""
    return bool(tensor.flags & TensorFlags.OWNED_BY_DML)


def _compiled(entry, members, desc: OperatorDesc) -> CompiledOperator:
    try:
        operator = compile_operator(desc)
    except ValueError as error:
        raise ValueError(f"`{entry.place}` is refused: {error}") from None
    if "dmlCompileType" not in members:
        return operator
    kind = members["dmlCompileType"]
    if kind.text() not in ("DmlCompileOp", "DmlCompileGraph"):
        raise kind.refused("be DmlCompileOp or DmlCompileGraph")
    if kind.value == "DmlCompileOp":
        return operator
    indices = range(len(desc.inputs))
    output = OutputGraphEdgeDesc(0, 0, 0, camel(desc.output_member))
    inputs = [InputGraphEdgeDesc(i, 0, i, operator.inputs[i].name) for i in indices]
    nodes = [OperatorGraphNodeDesc(desc)]
    return compile_graph(GraphDesc(len(indices), 1, nodes, inputs, [output]))


def _require_expanded(entry, desc, budget):
    """Refuses overlapping windows that would not fit into memory one by one."""
    for member, tensor in zip(desc.input_members, desc.inputs, strict=True):
        strides = packed_strides(tensor.sizes) if tensor.is_packed else tensor.strides
        pairs = zip(tensor.sizes, strides, strict=True)
        sizes = [size for size, stride in pairs if stride]
        count = math.prod(sizes)
        if count > extent(tensor.sizes, tensor.strides):
            size = count * tensor.data_type.bits // 8
            place = f"{entry.place}.{camel(member)}.Strides"
            budget.require(Entry(None, place), size)


def parse_views(
    entry: Entry, tensors: dict[str, BufferTensorDesc], resources: dict[str, Resource]
) -> dict[str, View]:
    """What is bound to each of the tensors, all of which must be."""
    views = {}
    for name, binding in entry.named():
        if name not in tensors:
            names = ", ".join(tensors) or "none"
            raise ValueError(
                f"`{binding.place}` must be the binding of a tensor ({names}); got "
                f"{name}"
            )
        views[name] = _view(binding, tensors[name], resources)
    for name in tensors:
        if name not in views:
            raise entry.refused(f"bind a resource to `{name}`")
    return views


def _view(entry, tensor, resources):
    """The range of a resource that is bound to a tensor."""
    if isinstance(entry.value, list):
        if len(entry.value) != 1:
            raise entry.refused("be 1 resource")
        entry = entry.items()[0]
    if not isinstance(entry.value, dict):
        return _checked_view(
            entry, parse_resource_name(entry, resources), 0, tensor, resources
        )
    members = entry.members(required=("name",), optional=_VIEW_MEMBERS)
    name = parse_resource_name(members["name"], resources)
    _require_kinds(members)
    offset = 0
    if "elementOffset" in members:
        offset = members["elementOffset"].unsigned(64)
    size = _element_size(members, resources[name])
    if offset and not size:
        rule = "have an `elementSizeInBytes`, since its resource has no data type"
        raise entry.refused(rule)
    return _checked_view(entry, name, offset * size, tensor, resources)


def _element_size(members, resource):
    """The bytes of an element; 0 stands for those of the resource's data type."""
    sizes = {"elementSizeInBytes": 64, "elementStride": 32}
    given = [
        members[name].unsigned(bits) for name, bits in sizes.items() if name in members
    ]
    return next(filter(None, given), resource.data_type.bits // 8)


def _require_kinds(members):
    """Refuses what DxDispatch's parser does, of members that have no effect here."""
    if "elementCount" in members:
        members["elementCount"].unsigned(64)
    if "format" in members:
        members["format"].text()
    if "shape" in members:
        for size in members["shape"].items():
            size.integer(-(2**63), 2**63 - 1)


_VIEW_MEMBERS = (
    "elementOffset",
    "elementStride",
    "elementSizeInBytes",
    "elementCount",  # of shaders and ONNX models only, as the next two
    "format",
    "shape",
)


def _checked_view(entry, name, offset, tensor, resources):
    alignment = max(
        MINIMUM_BUFFER_TENSOR_ALIGNMENT, tensor.guaranteed_base_offset_alignment
    )
    if offset % alignment:
        raise entry.refused(
            f"begin at a multiple of {alignment} bytes, not at {offset}"
        )
    left = resources[name].data.size - offset
    if left < tensor.total_tensor_size_in_bytes:
        rule = f"have {tensor.total_tensor_size_in_bytes} bytes for its tensor"
        raise entry.refused(f"{rule}, not {max(left, 0)}")
    return View(name, offset)


def parse_resource_name(entry: Entry, resources: dict[str, Resource]) -> str:
    """The name of a resource that the model has."""
    if entry.text() not in resources:
        raise entry.refused("be the name of a resource")
    return entry.value
