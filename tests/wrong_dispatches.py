"""The values in a DxDispatch model that test_dispatch_errors.py finds refused.

A row is a place in the valid model (none: the one above), the value that it gets there
as JSON (none: it is removed) and the message.
"""

import json
import string

import pytest
from dispatches import REMOVED

ROWS = string.Template(r"""
more | 1 | $MEMBERS commands, dispatchables, resources; got more
resources | [] | must be an object
commands | {} | must be an array
commands.0 | 7 | must be an object
resources.A | null | must be an object
$A |  | `resources.A` must have a member `initialValues`…
 | [] | must have at least one element
 | {"value": 1} | must have a member `valueCount`
$A.0 | null | $FLOAT
$A.1 | "infinity" | $FLOAT
 | 1e39 | $FLOAT
$A.2 | [[1]] | $FLOAT
resources.A.initialValuesDataType | "FLOAT" | $TYPE
 | "UINT4" | must be a data type of 8 bits or more
resources.A.sizeInBytes | 15 | must be at least 16, which the initial values need
 | -1 | $UINT64
 | 18446744073709551615 | `resources.A` must fit into the 65536 bytes that are left of
  65536; got 18446744073709551615 bytes
resources.A.initialValuesOffsetInBytes | 18446744073709551616 | $UINT64
 | 70000 | `resources.A` must fit into the 65536 bytes that are left of 65536; got 70016
  bytes
resources.A.size | 1 | $MEMBERS initialValues, initialValuesDataType,
  initialValuesOffsetInBytes, resampleMode, resampleSize, sizeInBytes; got size
resources.A.initialValuesDataType | 1 | must be a string
$B.valueCount | 0 | must be an integer from 1 to 4294967295
 | 4294967295 | must fit into the 65520 bytes that are left of 65536; got 17179869180
  bytes
$B.value |  | `resources.B.initialValues` must have one of the members value,
  valueStart, sourcePath…
 | {} | $FLOAT
$B.x | 1 | $MEMBERS value, valueCount; got x
resources.B.initialValuesDataType |  | `resources.B` must have a member
  `initialValuesDataType`…
$C.value | 1 | `resources.C.initialValues` must have one of the members value,
  valueStart, sourcePath…
$C.valueDelta |  | `resources.C.initialValues` must have a member `valueDelta`…
$C.valueStart | 2.5 | $INT16
$C.valueDelta | 32768 | $INT16
$D.0 | 1 | `resources.D` must have an `initialValuesDataType` other than UNKNOWN; got
  {"initialValues": [1]}
$D | [{"type": "UINT8", "value": 7}, 1] | `resources.D.initialValues[1]` must be an
  object; got 1
$D.0.type |  | `resources.D.initialValues[0]` must have a member `type`…
 | "UNKNOWN" | must be a data type other than UNKNOWN
$D.0.value | 256 | must be an integer from 0 to 255
$D | "deferred" | $OTHER a deferred buffer (`resources.D.initialValues`)
resources.E.initialValuesDataType |  | `resources.E` must have a member
  `initialValuesDataType`…
$E.sourcePath | "x.PNG" | $OTHER an image (`resources.E.initialValues`)
$SLICE.type |  | `dispatchables.slice` must have a member `type`…
 | "DML_OPERATOR_GEMM" | $OTHER DML_OPERATOR_GEMM (`dispatchables.slice.type`)
 | "hlsl" | $OTHER hlsl (`dispatchables.slice.type`)
$SLICE.sourcePath | "model.onnx" | $MEMBERS Desc, bindings, desc, dmlCompileType,
  executionFlags, type; got sourcePath
$DESC |  | `dispatchables.slice` must have a member `InputTensor`…
 | null | must be an object
$IN |  | `dispatchables.slice.desc` must have a member `InputTensor`…
$DESC.Axis | 1 | $MEMBERS DimensionCount, InputTensor, InputWindowOffsets,
  InputWindowSizes, InputWindowStrides, OutputTensor; got Axis
$IN.Type | "INVALID" | must be BUFFER
$IN.DataType | "INT4" | must be a data type of 8 bits or more
$IN.Flags | ["NONE", "OWNED"] | `$IN.Flags[1]` must be one of NONE, OWNED_BY_DML; got
  "OWNED"
 | "OWNED_BY_DML" | `dispatchables.slice.bindings` must bind a resource to
  `InputTensor`; got {}
$IN.Sizes | [4294967296] | `$IN.Sizes[0]` $UINT; got 4294967296
$DESC.InputTensor | {"DataType": "FLOAT32", "Sizes": [200, 200], "Strides": [1, 1]} |
  `$IN.Strides` must fit into the 65478 bytes that are left of 65536; got 160000 bytes
$IN.Strides | [1, 1] | must have as many elements as DimensionCount, 1
$IN.DimensionCount | 2 | `$IN.Sizes` must have as many elements as DimensionCount, 2;
  got [4]
$IN.TotalTensorSizeInBytes | 4 | `dispatchables.slice` is refused:
  DML_SLICE1_OPERATOR_DESC: `InputTensor.TotalTensorSizeInBytes` must be at least 16,
  which DataType, Sizes and Strides imply
$DESC.DimensionCount | 2 | `dispatchables.slice.desc.InputWindowOffsets` must have as
  many elements as DimensionCount, 2; got [0]
$DESC.InputWindowSizes | [5] | `dispatchables.slice` is refused:
  DML_SLICE1_OPERATOR_DESC: `InputWindowOffsets[0] + InputWindowSizes[0]` must be at
  most 4, `InputTensor.Sizes[0]`; got 5
$DESC.InputWindowStrides | [2147483648] |
  `dispatchables.slice.desc.InputWindowStrides[0]` must be an integer from -2147483648
  to 2147483647; got 2147483648
$SLICE.dmlCompileType | "DmlCompileAll" | must be DmlCompileOp or DmlCompileGraph
$SLICE.executionFlags | "FAST" | must be one of NONE, ALLOW_HALF_PRECISION_COMPUTATION,
  DISABLE_META_COMMANDS, DESCRIPTORS_VOLATILE
$SLICE.bindings | {"InputTensor": "A"} | `dispatchables.slice.bindings.InputTensor` must
  be the binding of a tensor (none); got InputTensor
$FILL.ValueDataType | "UNKNOWN" | must be a data type other than UNKNOWN
$FILL.Value | 256 | must be an integer from -128 to 255
 | {"Float32": 3} | must have a member `UInt8`
$FILL.OutputTensor.Sizes | [4] | $MEMBERS Desc, Type; got Sizes
$FILL.Valve | 3 | $MEMBERS OutputTensor, Value, ValueDataType; got Valve
commands.0.type |  | `commands[0]` must have a member `type`…
 | "run" | must be dispatch, print or writeFile
commands.0.dispatchable | "sliced" | must be the name of a dispatchable
$BIND | "A" | must be an object
 | {"InputTensor": "A"} | must bind a resource to `OutputTensor`
$BIND.IndicesTensor | "A" | must be the binding of a tensor (InputTensor, OutputTensor);
  got IndicesTensor
$BIND.InputTensor | "Z" | must be the name of a resource
 | "D" | must have 16 bytes for its tensor, not 4
 | ["A", "B"] | must be 1 resource
 | {"name": "B", "elementOffset": 2} | must begin at a multiple of 16 bytes, not at 8
 | {"name": "A", "elementOffset": 4} | must have 16 bytes for its tensor, not 0
 | {"name": "A", "elementOffset": 1, "elementStride": 4294967296} |
  `commands[0].bindings.InputTensor.elementStride` $UINT; got 4294967296
 | {"name": "A", "elementOffset": 1, "elementSizeInBytes": 18446744073709551616} |
  `commands[0].bindings.InputTensor.elementSizeInBytes` $UINT64; got
  18446744073709551616
 | {"name": "A", "elementCount": "4"} | `commands[0].bindings.InputTensor.elementCount`
  $UINT64; got "4"
 | {"name": "A", "format": 41} | `commands[0].bindings.InputTensor.format` must be a
  string; got 41
 | {"name": "A", "shape": [2.5]} | `commands[0].bindings.InputTensor.shape[0]` must be
  an integer from -9223372036854775808 to 9223372036854775807; got 2.5
 | {"name": "D", "elementOffset": 4} | must have an `elementSizeInBytes`, since its
  resource has no data type
 | {"name": "A", "offset": 4} | `commands[0].bindings.InputTensor.offset` $MEMBERS
  elementCount, elementOffset, elementSizeInBytes, elementStride, format, name, shape;
  got offset
 | "B" | `commands[0].bindings` must not share bytes between `OutputTensor` and
  `InputTensor`; got {"InputTensor": "B", "OutputTensor": "B"}
commands.0.threadGroup | [1] | $MEMBERS bindings, dispatchable, threadGroupCount, type;
  got threadGroup
commands.2.resource | "D" | must be a resource with an `initialValuesDataType`
commands.2.verbose | 1 | must be true or false
commands.3.resource | "D" | must be a resource with an `initialValuesDataType`
commands.3.dimensions | [3, 3] | must have a product of at most 8, its elements
 | [-1] | `commands[3].dimensions[0]` must be an integer from 1 to 4294967295; got -1
commands.3.targetPath | "x.jpeg" | $OTHER an image (`commands[3].targetPath`)
 | "x.txt" | must end in .npy, .dat or .bin
 | ".npy" | must end in .npy, .dat or .bin
$SOURCE | "none.npy" | must be a file that exists
 | "" | must be a regular file
 | "folder.bin" | must be a regular file
 | "fifo.bin" | must be a regular file
 | "empty.bin" | must be a file that is not empty
 | "large.bin" | must fit into the 65481 bytes that are left of 65536; got 16777217
  bytes
 | "../outside.npy" | $BELOW
 | "/dev/zero" | $BELOW
 | "link.npy" | $BELOW
 | "loop.npy" | must be a …
 | "$LONG" | $PATH
 | "a\u0000b" | $PRINTED
 | "\ud800" | $PRINTED; got "\ud800"
 | "pickle.npy" | $NUMPY
 | "zip.npy" | $NUMPY
 | "bare.npy" | $NUMPY
 | "short.npy" | $NUMPY
 | "complex.npy" | must hold a data type of DirectML, not complex64
 | "int16.npy" | must hold UINT8, the `initialValuesDataType`, not INT16
$TARGET | "folder.bin" | must be a regular file
 | "fifo.bin" | must be a regular file
 | "../out.npy" | $BELOW
 | "folder.bin/../../out.npy" | $BELOW
 | "new.bin" | $BELOW
 | "up/out.npy" | $BELOW
 | "/out.npy" | $BELOW
 | "$LONG.npy" | $PATH
 | "a\u0000.npy" | $PRINTED
 | "in.bin/out.npy" | must …
 | 1 | must be a string
$A.0 | 1$ZEROS | must be a number of FLOAT32, "nan", "inf" or "-inf"; got 1000…
$IN.Sizes | [$HUGE] | `$IN…
 | [$HUGE, $HUGE, $HUGE, $HUGE] | `$IN…
commands.3.dimensions | [$ONES 1] | must …
 | [0, 4294967295] | `commands[3].dimensions[0]` must be an integer from 1 to
  4294967295; got 0
""")
NAMES = {
    **{name: f"resources.{name}.initialValues" for name in "ABCDE"},
    "SLICE": "dispatchables.slice",
    "FILL": "dispatchables.fill",
    "DESC": "dispatchables.slice.desc",
    "IN": "dispatchables.slice.desc.InputTensor",
    "BIND": "commands.0.bindings",
    "SOURCE": "resources.E.initialValues.sourcePath",
    "TARGET": "commands.3.targetPath",
    "MEMBERS": "must be one of the members",
    "FLOAT": 'must be a number of FLOAT32, "nan", "inf" or "-inf"',
    "UINT": f"must be an integer from 0 to {2**32 - 1}",
    "UINT64": f"must be an integer from 0 to {2**64 - 1}",
    "INT16": "must be an integer from -32768 to 32767",
    "TYPE": "must be one of UNKNOWN, FLOAT32, FLOAT16, UINT32, UINT16, UINT8, INT32, "
    "INT16, INT8, FLOAT64, UINT64, INT64, UINT4, INT4",
    "OTHER": "`the model` must need no more than DML_OPERATOR_REVERSE_SUBSEQUENCES, "
    "DML_OPERATOR_SLICE, DML_OPERATOR_SLICE1, DML_OPERATOR_SLICE_GRAD, "
    "DML_OPERATOR_FILL_VALUE_CONSTANT, DML_OPERATOR_FILL_VALUE_SEQUENCE on buffers of "
    "numbers and of .npy, .dat and .bin files; got",
    "BELOW": "must stay below the model's folder or the current one",
    "PRINTED": "must be a string that can be printed",
    "PATH": "must be a path that can be read (…",
    "NUMPY": "must be an .npy file without pickles (…",
    "LONG": "x" * 300,
    "ZEROS": "0" * 398,
    "ONES": "1, " * 64,
    "HUGE": "4294967295, " * 400 + "4294967295",
}


def read_rows():
    place = ""
    for row in ROWS.substitute(NAMES).strip().replace("\n  ", " ").splitlines():
        above, value, message = row.split(" | ", 2)
        place = above.strip() or place
        value = json.loads(value) if value else REMOVED
        yield pytest.param(place, value, message, id=row[:40])
