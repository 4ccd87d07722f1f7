"""The buffers of a model and their initial values."""

import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

import dml_jax
from dml_jax import _array_files
from dml_jax.directml import DataType, FeatureLevel
from dml_jax.directml._members import UINT64
from dml_jax.directml.dxdispatch._files import IMAGES, Folders
from dml_jax.directml.dxdispatch._json import Entry


@dataclasses.dataclass
class Resource:
    """A buffer.

    Attributes:
      data: its bytes, uint8, padded to a multiple of 4.
      data_type: the type of its elements; UNKNOWN if they have several types.
      printed: the number of bytes that `print` shows, from byte 0 on. It is the size of
        the initial values, even if these start at another offset.
      length: its size in bytes without the padding.
    """

    data: np.ndarray
    data_type: DataType
    printed: int
    length: int

    def printed_elements(self) -> np.ndarray:
        """The elements that `print` shows."""
        return self.elements()[: self.printed // self.data_type.dtype.itemsize]

    def elements(self) -> np.ndarray:
        """All elements."""
        dtype = self.data_type.dtype
        return np.frombuffer(self.data, dtype, count=self.length // dtype.itemsize)


@dataclasses.dataclass
class Context:
    """The state that the parsers of a model share.

    Attributes:
      folders: the folders of the model, of its input files and of its output files,
        and the current one.
      feature_level: the level at which operators are validated.
      max_bytes: the maximum size of all buffers together.
      resources: the buffers that have been parsed.
      used_bytes: their size.
    """

    folders: Folders
    feature_level: FeatureLevel
    max_bytes: int
    resources: dict[str, Resource] = dataclasses.field(default_factory=dict)
    used_bytes: int = 0

    def require_memory(self, entry: Entry, size: int) -> None:
        """Raises if an entry needs more bytes than the parsed buffers leave."""
        left = self.max_bytes - self.used_bytes
        if size > left:
            rule = f"fit into the {left} bytes that are left of `max_bytes`, "
            raise entry.error(f"{rule}{self.max_bytes}", got=f"{size} bytes")

    def resource(self, entry: Entry) -> Resource:
        """The buffer that an entry names."""
        if entry.text() not in self.resources:
            raise entry.error("be the name of a resource")
        return self.resources[entry.value]


def parse_resource(entry: Entry, context: Context) -> Resource:
    """A buffer with its initial values."""
    defaults = {
        "type": "buffer",
        "initialValuesDataType": "UNKNOWN",
        "initialValuesOffsetInBytes": 0,
        "sizeInBytes": None,
        "resampleSize": None,  # this and the next are for images
        "resampleMode": None,
    }
    members = entry.members(("initialValues",), defaults)
    if members["type"].text().lower() != "buffer":
        raise members["type"].error("be buffer")
    data_type = parse_data_type(members["initialValuesDataType"])
    initial = members["initialValues"]
    values, data_type = _initial_values(entry, initial, data_type, context)
    values = values.view(np.uint8)
    offset = members["initialValuesOffsetInBytes"].integer(UINT64)
    size = offset + values.size
    if "sizeInBytes" in entry.value:
        given = members["sizeInBytes"]
        if given.integer(UINT64) < size:
            raise given.error(f"be at least {size}, the size of the initial values")
        size = given.value
    context.require_memory(entry, size)
    context.used_bytes += size
    data = np.zeros(-(-size // 4) * 4, np.uint8)
    data[offset : offset + values.size] = values
    return Resource(data, data_type, values.size, size)


def _initial_values(
    entry: Entry, initial: Entry, data_type: DataType, context: Context
) -> tuple[np.ndarray, DataType]:
    """The initial values, and their data type, which may come from an .npy file."""
    if isinstance(initial.value, list):
        if not initial.value:
            raise initial.error("have at least one element")
        if data_type is DataType.UNKNOWN and isinstance(initial.value[0], dict):
            return _mixed(initial), data_type
        _require_data_type(entry, data_type)
        return parse_numbers(initial, data_type), data_type
    if initial.value == "deferred":
        rule = "be known when the model is read: deferred buffers are not supported"
        raise initial.error(rule, NotImplementedError)
    if not isinstance(initial.value, dict):
        raise initial.error("be an array or an object")
    if len({"value", "valueStart", "sourcePath"} & initial.entries().keys()) != 1:
        raise initial.error("have one of the members value, valueStart, sourcePath")
    read = _file if "sourcePath" in initial.value else _generated
    return read(entry, initial, data_type, context)


def _file(
    entry: Entry, initial: Entry, data_type: DataType, context: Context
) -> tuple[np.ndarray, DataType]:
    """The elements of an .npy file, or the bytes of any other file."""
    source = initial.members(required=("sourcePath",))["sourcePath"]
    if source.text().lower().endswith(IMAGES):
        raise source.error("be a file of numbers, not an image", NotImplementedError)
    path = context.folders.source_path(source)
    context.require_memory(source, path.stat().st_size)
    if path.suffix.lower() == ".npy":
        array, of_file = _npy(source, path)
    else:
        _require_data_type(entry, data_type)
        array, of_file = np.fromfile(path, np.uint8), data_type
    if not array.size:
        raise source.error("be a file that is not empty")
    if data_type not in (DataType.UNKNOWN, of_file):
        rule = f"hold {data_type.name}, the `initialValuesDataType`, not {of_file.name}"
        raise source.error(rule)
    return array, of_file


def _npy(entry: Entry, path: pathlib.Path) -> tuple[np.ndarray, DataType]:
    """The elements of an .npy file, and their data type."""
    try:
        array = _array_files.read(path)
    except (OSError, ValueError) as error:
        raise entry.error(f"be an .npy file without pickles ({error})") from None
    name = "UINT8" if array.dtype == np.bool_ else array.dtype.name.upper()
    if name not in DataType.__members__:
        raise entry.error(f"hold a data type of DirectML, not {array.dtype}")
    return array.reshape(-1), DataType[name]


def _generated(
    entry: Entry, initial: Entry, data_type: DataType, context: Context
) -> tuple[np.ndarray, DataType]:
    """A constant, or a sequence of numbers."""
    _require_data_type(entry, data_type)
    is_constant = "value" in initial.value
    names = ("value",) if is_constant else ("valueStart", "valueDelta")
    members = initial.members(required=("valueCount", *names))
    count = members["valueCount"].integer(range(1, 2**32))
    context.require_memory(members["valueCount"], count * data_type.dtype.itemsize)
    numbers = [parse_number(members[name], data_type) for name in names]
    if is_constant:
        return np.repeat(numbers[0], count), data_type
    # A power of two, so that sequences of many sizes do not compile as many programs.
    size = 1 << (count - 1).bit_length()
    with jax.enable_x64(True), jax.debug_nans(False):
        values = dml_jax.fill_value_sequence((size,), data_type.dtype, *numbers)
        return np.asarray(values)[:count], data_type


def _require_data_type(entry: Entry, data_type: DataType) -> None:
    if data_type is DataType.UNKNOWN:
        raise entry.error("have an `initialValuesDataType` other than UNKNOWN")


def _mixed(entry: Entry) -> np.ndarray:
    """The bytes of elements, each of which has its own data type."""
    parts = []
    for element in entry.elements():
        members = element.members(("type", "value"), {"name": None})
        data_type = parse_data_type(members["type"], is_known=True)
        parts.append(parse_number(members["value"], data_type).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8)


# Numbers of a data type ---------------------------------------------------------------


def parse_data_type(entry: Entry, is_known: bool = False) -> DataType:
    """A data type of 8 bits or more; UNKNOWN is refused if `is_known`."""
    data_type = entry.member_of(DataType, "DML_TENSOR_DATA_TYPE_")
    if is_known and data_type is DataType.UNKNOWN:
        raise entry.error("be a data type other than UNKNOWN")
    if 0 < data_type.bits < 8:
        raise entry.error("be a data type of 8 bits or more")
    return data_type


def parse_numbers(entry: Entry, data_type: DataType) -> np.ndarray:
    """A JSON array as a NumPy array of a data type."""
    dtype = data_type.dtype
    if {*map(type, entry.value)} <= ({int, float} if dtype.kind == "f" else {int}):
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            array = np.array(entry.value, dtype)
            if np.isfinite(array).all():
                return array
    # Some elements are special values or errors.
    return np.array([parse_number(element, data_type) for element in entry.elements()])


def parse_number(entry: Entry, data_type: DataType) -> Any:
    """A JSON number as a NumPy scalar of a data type."""
    value, dtype = entry.value, data_type.dtype
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        return dtype.type(entry.integer(range(int(limits.min), int(limits.max) + 1)))
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf"):
        return dtype.type(value)
    if type(value) in (int, float):
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            number = dtype.type(value)
            if np.isfinite(number):
                return number
    raise entry.error(f'be a number of {data_type.name}, "nan", "inf" or "-inf"')
