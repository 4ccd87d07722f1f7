"""Fails unless the wheel and the sdist hold exactly the files that git has for them.

python .ci/contents.py DIST CHECKOUT
"""

import pathlib
import subprocess
import sys
import tarfile
import zipfile

dist, checkout = map(pathlib.Path, sys.argv[1:])
listing = ["git", "-C", checkout, "ls-files"]
tracked = subprocess.run(listing, capture_output=True, text=True, check=True)
files = tracked.stdout.splitlines()
(wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")


def require_same(archive, found, expected):
    if found != expected:
        sys.exit(f"{archive.name}: one of two has {sorted(found ^ expected)}")


with zipfile.ZipFile(wheel) as archive:
    names = [name.split(".dist-info/") for name in archive.namelist()]
require_same(
    wheel,
    {"/".join(parts[1:] or parts) for parts in names},
    {name for name in files if name.startswith("dml_jax/")}
    | {
        name.replace("docs/", "dml_jax/", 1)
        for name in files
        if name.startswith("docs/examples/dxdispatch/")
    }
    | {"METADATA", "WHEEL", "RECORD", "entry_points.txt"},
)

with tarfile.open(sdist) as archive:
    found = {member.name.partition("/")[2] for member in archive if member.isfile()}
require_same(
    sdist,
    found,
    {
        name
        for name in files
        if name.startswith(("dml_jax/", "tests/", "benchmarks/", "docs/"))
    }
    | {".gitignore", "PKG-INFO", "README.md", "pyproject.toml"},
)
