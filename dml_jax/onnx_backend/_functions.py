"""The functions of an ONNX model, inlined, each node with the opset it was written for.

A function imports opsets of its own, and ONNX inlines no function whose opsets are not
the model's. Here they are made to agree for ONNX, and each node keeps its version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx
import onnx.helper
import onnx.inliner


class Inlined(NamedTuple):
    """A model without functions.

    Attributes:
      model: the model.
      opsets: for each node of its graph, the version of ONNX's operators it is of.
      is_mixed: whether any of them is not the model's.
    """

    model: onnx.ModelProto
    opsets: tuple[int, ...]
    is_mixed: bool


def opset_of(imports: Iterable[onnx.OperatorSetIdProto], default: int = 1) -> int:
    """The version of ONNX's operators that a model or a function imports."""
    versions = {_domain(opset): opset.version for opset in imports}
    return versions.get("", default)


def inline(model: onnx.ModelProto) -> Inlined:
    """Puts the nodes of functions in the place of their calls, of nested ones too."""
    model, original = onnx.ModelProto(), model  # the caller's, who may change it
    model.CopyFrom(original)
    own = opset_of(model.opset_import)
    if not model.functions:
        return Inlined(model, (own,) * len(model.graph.node), is_mixed=False)
    _note(model.graph.node, own)
    _set_defaults(model)
    versions = {_domain(opset): opset.version for opset in model.opset_import}
    for function in model.functions:
        _note(function.node, opset_of(function.opset_import, own))
        for opset in function.opset_import:
            versions.setdefault(_domain(opset), opset.version)
    imports = [onnx.helper.make_opsetid(*pair) for pair in versions.items()]
    for part in (model, *model.functions):
        del part.opset_import[:]
        part.opset_import.extend(imports)
    model = onnx.inliner.inline_local_functions(model)
    opsets = tuple(int(node.metadata_props[0].value) for node in model.graph.node)
    return Inlined(model, opsets, is_mixed=any(opset != own for opset in opsets))


def _note(nodes, opset):
    """The inliner keeps what nodes say about themselves."""
    for node in nodes:
        del node.metadata_props[:]
        node.metadata_props.add(key="opset", value=str(opset))


def _set_defaults(model):
    """The inliner leaves the defaults of a function's attributes out."""
    defaults = {
        (_domain(function), function.name, function.overload): function.attribute_proto
        for function in model.functions
    }
    for part in (model.graph, *model.functions):
        for node in part.node:
            given = {attribute.name for attribute in node.attribute}
            key = (_domain(node), node.op_type, node.overload)
            missing = [a for a in defaults.get(key, ()) if a.name not in given]
            node.attribute.extend(missing)


def _domain(message):
    """The domain of an opset, a function or a node, of which ONNX's has two names."""
    return "" if message.domain == "ai.onnx" else message.domain
