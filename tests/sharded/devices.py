"""The mesh of eight devices, and what programs compiled for it hold and send."""

import math
import re

import jax

DATA, MODEL = 4, 2  # the sizes of the mesh
ALL = ("data", "model")


def make_mesh(axis_type):
    return jax.make_mesh((DATA, MODEL), ALL, axis_types=(axis_type, axis_type))


def compile_for(function, *arrays, **options):
    return jax.jit(function, **options).lower(*arrays).compile()


def collectives(compiled):
    kinds = r"all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter"
    return sorted(set(re.findall(kinds, compiled.as_text())))


def most_elements(compiled):
    """The size of the largest array that one device holds, intermediate ones too."""
    shapes = re.findall(r"\b[a-z]+\d*\w*\[([\d,]*)\]", compiled.as_text())
    return max(math.prod(map(int, filter(None, s.split(",")))) for s in shapes)
