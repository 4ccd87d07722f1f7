"""The buffers of a model and what they hold at first."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np

import dml_jax
from dml_jax.directml._types import DataType
from dml_jax.directml.dxdispatch import _files
from dml_jax.directml.dxdispatch._json import Entry
from dml_jax.directml.dxdispatch._values import (
    parse_data_type,
    parse_number,
    parse_numbers,
)


@dataclasses.dataclass
class Resource:
    """A buffer.

    Attributes:
      data: its bytes, uint8, a multiple of 4.
      data_type: what it is printed as; UNKNOWN where its elements are mixed.
      printed: how many bytes are printed, those of as many elements as it has initial
        values; wherever these are placed, printing begins at byte 0.
      length: how many bytes it was asked to have.
    """

    data: np.ndarray
    data_type: DataType
    printed: int
    length: int

    def printed_elements(self) -> np.ndarray:
        """The elements that are printed."""
        return self._elements(self.data[: self.printed])

    def elements(self) -> np.ndarray:
        """All of its elements."""
        return self._elements(self.data[: self.length])

    def _elements(self, data):
        dtype = self.data_type.dtype
        return np.frombuffer(data, dtype, count=data.size // dtype.itemsize)


class Budget:
    """The bytes that a model may take, and what is left of them."""

    def __init__(self, most: int):
        self.most = self.left = most

    def require(self, entry: Entry, size: int) -> None:
        """Refuses what needs more than is left, before it is made."""
        if size > self.left:
            raise ValueError(
                f"`{entry.place}` must fit into the {self.left} bytes that are left of "
                f"{self.most}; got {size} bytes"
            )

    def take(self, entry: Entry, size: int) -> None:
        """Takes what an entry needs."""
        self.require(entry, size)
        self.left -= size


def parse_resource(entry: Entry, folder: pathlib.Path, budget: Budget) -> Resource:
    """A buffer with its initial values."""
    members = entry.members(required=("initialValues",), optional=_OPTIONAL)
    data_type = DataType.UNKNOWN
    if "initialValuesDataType" in members:
        data_type = parse_data_type(members["initialValuesDataType"])
    values, data_type = _initial_values(entry, members, data_type, folder, budget)
    initial = values.reshape(-1).view(np.uint8)
    offset = 0
    if "initialValuesOffsetInBytes" in members:
        offset = members["initialValuesOffsetInBytes"].unsigned(64)
    size = offset + initial.size
    if "sizeInBytes" in members:
        given = members["sizeInBytes"]
        if given.unsigned(64) < size:
            raise given.refused(f"be at least {size}, which the initial values need")
        size = given.value
    budget.take(entry, size)
    data = np.zeros(-(-size // 4) * 4, np.uint8)
    data[offset : offset + initial.size] = initial
    return Resource(data, data_type, initial.size, size)


_OPTIONAL = (
    "initialValuesDataType",
    "initialValuesOffsetInBytes",
    "sizeInBytes",
    "resampleSize",  # of images only, as the next one
    "resampleMode",
)


def _initial_values(entry, members, data_type, folder, budget):
    """The initial values, and their data type if a file has one of its own."""
    initial = members["initialValues"]
    if isinstance(initial.value, list):
        if not initial.value:
            raise initial.refused("have at least one element")
        if data_type is not DataType.UNKNOWN:
            return parse_numbers(initial, data_type), data_type
        if not isinstance(initial.value[0], dict):
            raise entry.refused("have an `initialValuesDataType` other than UNKNOWN")
        return _list(initial), data_type
    if not isinstance(initial.value, dict):
        raise initial.refused("be an array or an object")
    generators = {"value", "valueStart", "sourcePath"} & dict(initial.named()).keys()
    if len(generators) != 1:
        raise initial.refused("have one of the members value, valueStart, sourcePath")
    if generators == {"sourcePath"}:
        return _file(entry, initial, data_type, folder, budget)
    if data_type is DataType.UNKNOWN:
        raise entry.refused("have a member `initialValuesDataType`")
    generate = _constant if generators == {"value"} else _sequence
    return generate(initial, data_type, budget), data_type


def _constant(initial, data_type, budget):
    members = initial.members(required=("valueCount", "value"))
    count = _count(members["valueCount"], data_type, budget)
    return np.repeat(parse_number(members["value"], data_type), count)


def _sequence(initial, data_type, budget):
    members = initial.members(required=("valueCount", "valueStart", "valueDelta"))
    count = _count(members["valueCount"], data_type, budget)
    start, delta = (
        parse_number(members[name], data_type) for name in ("valueStart", "valueDelta")
    )
    with jax.enable_x64(True), jax.debug_nans(False):
        values = dml_jax.fill_value_sequence((count,), data_type.dtype, start, delta)
        return np.asarray(values)


def _count(entry, data_type, budget):
    """The number of values, whose size the budget must have."""
    count = entry.integer(1, 2**32 - 1)
    budget.require(entry, count * data_type.dtype.itemsize)
    return count


def _file(entry, initial, data_type, folder, budget):
    source = initial.members(required=("sourcePath",))["sourcePath"]
    path = _files.source_path(source, folder)
    budget.require(source, path.stat().st_size)
    if path.suffix.lower() == ".npy":
        array, of_file = _files.read_array(source, path)
        if data_type not in (DataType.UNKNOWN, of_file):
            rule = f"hold {data_type.name}, the `initialValuesDataType`"
            raise source.refused(f"{rule}, not {of_file.name}")
        return array, of_file
    if data_type is DataType.UNKNOWN:
        raise entry.refused("have a member `initialValuesDataType`")
    data = np.fromfile(path, np.uint8)
    if not data.size:
        raise source.refused("be a file that is not empty")
    return data, data_type


def _list(entry):
    """Elements of different types, one after the other."""
    parts = []
    for item in entry.items():
        members = item.members(required=("type", "value"), optional=("name",))
        data_type = parse_data_type(members["type"])
        if data_type is DataType.UNKNOWN:
            raise members["type"].refused("be a data type other than UNKNOWN")
        number = parse_number(members["value"], data_type)
        parts.append(np.frombuffer(number.tobytes(), np.uint8))
    return np.concatenate(parts)
