"""The operators of a model, and the resources that are bound to their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dml_jax.directml import (
    MINIMUM_BUFFER_TENSOR_ALIGNMENT,
    TENSOR_DIMENSION_COUNT_MAX1,
    BufferTensorDesc,
    CompiledOperator,
    DataType,
    ExecutionFlags,
    OperatorDesc,
    ScalarUnion,
    TensorFlags,
    TensorType,
    compile_operator,
)
from dml_jax.directml._members import UINT64, camel, fields_of
from dml_jax.directml._operators import OPERATORS
from dml_jax.directml.dxdispatch._json import Entry, shortened
from dml_jax.directml.dxdispatch._resources import (
    Context,
    Resource,
    parse_data_type,
    parse_number,
)


class View(NamedTuple):
    """The part of a resource that is bound to a tensor, in bytes."""

    resource: str
    offset: int
    size: int

    def overlaps(self, other: View) -> bool:
        """Whether two views share bytes."""
        start = max(self.offset, other.offset)
        end = min(self.offset + self.size, other.offset + other.size)
        return self.resource == other.resource and start < end


class Dispatchable(NamedTuple):
    """An operator, and the views that are bound to its owned inputs, by tensor name."""

    operator: CompiledOperator
    owned: dict[str, View]


_OPTIONS: dict[str, Any] = {
    "dmlCompileType": "DmlCompileOp",
    "executionFlags": [],
    "bindings": {},
}


def parse_dispatchable(entry: Entry, context: Context) -> Dispatchable:
    """A validated operator, and the inputs that are bound at initialization."""
    given = entry.entries()
    type_name = "Type" if "Type" in given else "type"
    if "desc" in given and "Desc" in given:
        raise entry.error("have one of the members `desc` and `Desc`")
    desc_name = next((name for name in ("desc", "Desc") if name in given), None)
    if desc_name:
        members = entry.members((type_name, desc_name), _OPTIONS)
        desc_entry, others = members[desc_name], {}
    else:  # the description is inline
        members = entry.members((type_name, *given), _OPTIONS)
        desc_entry, others = entry, {type_name: "", **_OPTIONS}
    desc = _desc(_struct(members[type_name]), desc_entry, others)
    _require_expandable(desc_entry, desc, context)
    members["executionFlags"].flags_of(ExecutionFlags, "DML_EXECUTION_FLAG_")
    try:
        operator = compile_operator(desc, context.feature_level)
    except ValueError as error:
        raise ValueError(f"`{entry.location}`: {error}") from None
    # DmlCompileGraph compiles a graph of this one operator, which is the same program.
    if members["dmlCompileType"].text() not in ("DmlCompileOp", "DmlCompileGraph"):
        raise members["dmlCompileType"].error("be DmlCompileOp or DmlCompileGraph")
    owned = {n: t for n, t in operator.inputs if t.flags & TensorFlags.OWNED_BY_DML}
    return Dispatchable(operator, parse_views(members["bindings"], owned, context))


def _struct(entry: Entry) -> Any:
    """The structure of an operator; an error if this package lacks it."""
    structs = {f"DML_OPERATOR_{kind.name}": OPERATORS[kind] for kind in OPERATORS}
    name = f"DML_OPERATOR_{entry.text().removeprefix('DML_OPERATOR_')}"
    if name not in structs:
        rule, got = f"be one of {', '.join(structs)}", shortened(entry.value, 60)
        raise entry.error(rule, NotImplementedError, got)
    return structs[name]


def _require_expandable(entry: Entry, desc: OperatorDesc, context: Context) -> None:
    """Refuses tensors of overlapping elements whose copies need too much memory."""
    for member, tensor in zip(desc.input_members, desc.inputs, strict=True):
        count = tensor.layout.compact.element_count
        if count > tensor.layout.extent:
            location = f"{entry.location}.{camel(member)}.Strides"
            size = count * tensor.data_type.bits // 8
            context.require_memory(Entry(None, location), size)


def parse_views(
    entry: Entry, tensors: dict[str, BufferTensorDesc], context: Context
) -> dict[str, View]:
    """The views that are bound to tensors, one to each."""
    members = entry.members(required=tensors)
    return {name: _view(members[name], tensors[name], context) for name in tensors}


_VIEW_DEFAULTS: dict[str, Any] = {
    "elementOffset": 0,
    "elementStride": 0,
    "elementSizeInBytes": 0,
    # These have no effect: they are for shaders and ONNX models.
    "elementCount": 0,
    "format": "",
    "shape": [],
    "counter": None,
    "counterOffsetBytes": 0,
}


def _view(entry: Entry, tensor: BufferTensorDesc, context: Context) -> View:
    """A view, given as the name of a resource or as an object, or an array of one."""
    if isinstance(entry.value, list):
        if len(entry.value) != 1:
            raise entry.error("be 1 resource")
        entry = entry.elements()[0]
    name, offset = entry, 0
    if isinstance(entry.value, dict):
        members = entry.members(("name",), _VIEW_DEFAULTS)
        name = members["name"]
        offset = _offset(entry, members, context.resource(name))
    resource = context.resource(name)
    alignment = max(
        MINIMUM_BUFFER_TENSOR_ALIGNMENT, tensor.guaranteed_base_offset_alignment
    )
    if offset % alignment:
        raise entry.error(f"begin at a multiple of {alignment} bytes, not at {offset}")
    size, left = tensor.total_tensor_size_in_bytes, resource.data.size - offset
    if left < size:
        raise entry.error(f"have {size} bytes for its tensor, not {max(left, 0)}")
    return View(name.value, offset, size)


def _offset(entry: Entry, members: dict[str, Entry], resource: Resource) -> int:
    """The offset of a view in bytes."""
    count = members["elementOffset"].integer(UINT64)
    given = members["elementSizeInBytes"].integer(UINT64)
    stride = members["elementStride"].integer()
    size = given or stride or resource.data_type.bits // 8
    if count and not size:
        rule = "have an `elementSizeInBytes`, since its resource has no data type"
        raise entry.error(rule)
    return count * size


# Descriptions -------------------------------------------------------------------------

_TYPE = {"Type": "BUFFER"}
_TENSOR_DEFAULTS = {
    "Flags": [],
    "DimensionCount": None,
    "Strides": [],
    "TotalTensorSizeInBytes": 0,
    "GuaranteedBaseOffsetAlignment": 0,
}


def _desc(struct: Any, entry: Entry, others: dict[str, Any]) -> OperatorDesc:
    """The description of an operator, from the fields of a structure, among others."""
    fields = fields_of(struct)
    required = [*map(camel, fields)]
    if Sequence[int] in fields.values():
        required.append("DimensionCount")
    members = entry.members(required, others)
    data_type = DataType.UNKNOWN
    values: dict[str, Any] = {}
    for field, kind in fields.items():
        member = members[camel(field)]
        values[field] = member.value
        if kind is BufferTensorDesc:
            values[field] = _tensor(member)
        elif kind is DataType:  # precedes the values
            values[field] = data_type = parse_data_type(member, is_known=True)
        elif kind is ScalarUnion:
            values[field] = _scalar(member, data_type)
        elif kind == Sequence[int]:
            _require_count(member, members["DimensionCount"])
    with entry.located():
        return struct(**values)


def _scalar(entry: Entry, data_type: DataType) -> ScalarUnion:
    """A DML_SCALAR_UNION: a number, or an object with the member that holds it."""
    if isinstance(entry.value, dict):
        if data_type is DataType.FLOAT16:  # the union has its bits alone
            bits = entry.members(required=("UInt16",))["UInt16"].integer(range(2**16))
            return ScalarUnion(uint16=bits)
        kind = {"f": "Float", "u": "UInt", "i": "Int"}[data_type.dtype.kind]
        member = f"{kind}{data_type.bits}"
        entry = entry.members(required=(member,))[member]
    if data_type.dtype.kind == "f":
        return ScalarUnion.of(data_type, parse_number(entry, data_type))
    # As in the fill functions, -2 for UINT8 is 254.
    both = range(-(2 ** (data_type.bits - 1)), 2**data_type.bits)
    return ScalarUnion.of(data_type, entry.integer(both))


def _tensor(entry: Entry) -> BufferTensorDesc:
    """A DML_TENSOR_DESC, with its members inline or in `Desc`."""
    outer = entry.members(("Desc",), _TYPE) if "Desc" in entry.entries() else {}
    desc = outer.get("Desc", entry)
    members = outer | desc.members(
        ("DataType", "Sizes"), _TENSOR_DEFAULTS if outer else _TENSOR_DEFAULTS | _TYPE
    )
    kind = members["Type"].member_of(TensorType, "DML_TENSOR_TYPE_")
    if kind is not TensorType.BUFFER:
        raise members["Type"].error("be BUFFER")
    for name in ("Sizes", "Strides"):
        members[name].elements(TENSOR_DIMENSION_COUNT_MAX1)
    if "DimensionCount" in desc.value:
        _require_count(members["Sizes"], members["DimensionCount"])
    data_type = parse_data_type(members["DataType"])
    flags = members["Flags"].flags_of(TensorFlags, "DML_TENSOR_FLAG_")
    # As in DxDispatch, 0 means the size that the layout needs.
    total = members["TotalTensorSizeInBytes"].integer(UINT64) or None
    with desc.located():
        return BufferTensorDesc(
            data_type,
            members["Sizes"].value,
            members["Strides"].value or None,
            total,
            flags,
            members["GuaranteedBaseOffsetAlignment"].value,
        )


def _require_count(entry: Entry, count: Entry) -> None:
    if len(entry.elements(TENSOR_DIMENSION_COUNT_MAX1)) != count.integer():
        raise entry.error(f"have as many elements as DimensionCount, {count.value}")
