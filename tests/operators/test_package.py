"""The face of the package: names, signatures, documentation, imports."""

import dataclasses
import doctest
import enum
import inspect
import pathlib
import sys
import typing
from typing import Any

import pytest
from children import printed_by

import dml_jax
from dml_jax import directml, reference

PUBLIC = [getattr(dml_jax, name) for name in dml_jax.__all__]
ROOT = pathlib.Path(__file__).parents[2]


def name_of(function: Any) -> str:
    return function.__name__


@pytest.mark.parametrize("function", PUBLIC, ids=name_of)
def test_docstring_is_complete(function: Any) -> None:
    assert inspect.isfunction(function)
    assert function.__module__ == "dml_jax"
    text = inspect.getdoc(function)
    summary, *rest = text.split("\n\n")
    assert "\n" not in summary
    sections = ["Args:", "Returns:", "Raises:", "Example:", "Source:"]
    if function is not dml_jax.checked:
        sections += ["Derivatives:", "Sharding:"]
    missing = [section for section in sections if section not in "\n\n".join(rest)]
    assert not missing
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    for parameter in inspect.signature(function).parameters:
        assert f"  {parameter}: " in arguments


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("documented", [*PUBLIC, dml_jax, directml], ids=name_of)
def test_example_gives_what_it_prints(documented: Any) -> None:
    finder = doctest.DocTestFinder(recurse=not inspect.isfunction(documented))
    tests = finder.find(documented, globs={"dml_jax": dml_jax, **vars(documented)})
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert sum(result.attempted for result in results)
    assert not any(result.failed for result in results)


NOT_OF_DIRECTML = "Support", "CompiledOperator", "OperatorDesc", "FunctionGraphNodeDesc"


@pytest.mark.parametrize("name", directml.__all__)
def test_description_says_where_it_is_from(name: str) -> None:
    """Every structure and function of DirectML names its page; numbers say what of."""
    value = getattr(directml, name)
    if isinstance(value, int):
        return
    if inspect.isfunction(value):
        assert value.__module__ == "dml_jax.directml"
    text = inspect.getdoc(value)
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        assert text.startswith("DML_")
    elif name not in NOT_OF_DIRECTML:
        assert "Source: DirectML, " in text
    if inspect.isfunction(value) or dataclasses.is_dataclass(value):
        for parameter in inspect.signature(value).parameters:
            assert f"  {parameter}: " in text


@pytest.mark.parametrize("function", PUBLIC, ids=name_of)
def test_options_are_keyword_only(function: Any) -> None:
    parameters = inspect.signature(function).parameters.values()
    optional = [p for p in parameters if p.default is not inspect.Parameter.empty]
    # `axis` as in jax.numpy, and arrays, which are not options
    positional = {"axis", "lengths", "strides", "output_sizes"}
    assert all(
        p.kind is inspect.Parameter.KEYWORD_ONLY
        for p in optional
        if p.name not in positional
    )


def test_classes_can_be_inspected() -> None:
    """What documentation tools and debuggers ask of them."""
    for name in directml.__all__:
        if inspect.isclass(getattr(directml, name)):
            assert inspect.getsource(getattr(directml, name))
            assert typing.get_type_hints(getattr(directml, name)) is not None


def test_public_names_are_the_documented_ones() -> None:
    names = {name for name in vars(dml_jax) if not name.startswith("_")}
    submodules = {n for n in names if inspect.ismodule(getattr(dml_jax, n))}
    assert names - submodules == set(dml_jax.__all__)


def test_the_reference_has_every_operator() -> None:
    others = {"bidirectional_scan", "checked", "padded_scan"}  # which take a function
    operators = set(dml_jax.__all__) - others
    assert set(reference.__all__) == operators | {"nearest"}
    assert all(hasattr(reference, name) for name in reference.__all__)


def test_import_is_light() -> None:
    """Only jax and numpy come with the package, and submodules when they are used."""
    shown = printed_by(
        "import sys, jax; before = set(sys.modules); import dml_jax",
        "print(*sorted(set(sys.modules) - before))",
        "for name in ('directml', 'onnx_backend'):",
        "    is_new = 'dml_jax.' + name not in sys.modules and name in dir(dml_jax)",
        "    print(is_new, getattr(dml_jax, name) is sys.modules['dml_jax.' + name])",
    )
    modules, *are_submodules = shown.splitlines()
    roots = {name.split(".")[0] for name in modules.split()}
    allowed = {"dml_jax", "jax", "jaxlib", "numpy", "fractions"}
    assert roots - allowed <= set(sys.stdlib_module_names) - {"argparse"}
    # `jax.extend` brings Pallas, but nothing that generates code.
    for heavy in ("mosaic.lowering", "mosaic_gpu.lowering"):
        assert heavy not in modules
    assert are_submodules == ["True True"] * 2


def test_a_submodule_without_its_extra() -> None:
    """The error names the missing package, and `help` still works."""
    shown = printed_by(
        "import sys, inspect; sys.modules['onnx'] = None; import dml_jax",
        "print('onnx_backend' in dir(dml_jax)); inspect.getmembers(dml_jax)",
        "try: import dml_jax.onnx_backend",
        "except ModuleNotFoundError as error: print(error)",
        "try: dml_jax.onnx_backend",
        "except ModuleNotFoundError as error: print(error)",
    )
    is_listed, *errors = shown.splitlines()
    assert is_listed == "False"
    assert errors == errors[:1] * 2
    assert "onnx" in errors[0]


def test_other_attributes_are_missing() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dml_jax' has no attribute 'x'"):
        _ = dml_jax.x


def test_the_package_uses_public_jax_only() -> None:
    for path in (ROOT / "dml_jax").rglob("*.py"):
        assert "jax._src" not in path.read_text(), path


def test_user_errors_are_not_assertions() -> None:
    for path in (ROOT / "dml_jax").rglob("*.py"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.strip().startswith("assert ")], path
