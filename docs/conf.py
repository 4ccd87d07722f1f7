"""The documentation: python -m sphinx -W --keep-going -b html docs docs/_build."""

import ast
import codeop
import importlib
import inspect
import re

from docutils import nodes
from sphinx.util import logging

import dml_jax

project = "dml_jax"
release = version = dml_jax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"dml_jax {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_copyright = False
copybutton_prompt_text = r">>> |\.\.\.(?: |$)|\$ "  # "..." alone ends a block
copybutton_prompt_is_regexp = True
myst_heading_anchors = 3

# What docstrings set in backticks is code. Only public names of this package must be
# found: the inventories of others would have to be fetched.
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!dml_jax\.).*|.*\._.*")]
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80
ALIASES = "ArrayLike", "DTypeLike", "LengthsLike"
autodoc_type_aliases = {name: name for name in ALIASES}

PUBLIC = (
    "dml_jax",
    "dml_jax.cli",
    "dml_jax.directml",
    "dml_jax.directml.dxdispatch",
    "dml_jax.onnx_backend",
    "dml_jax.reference",
)


def public_names(name):
    """What a module exports: `__all__`, or else what it defines without underscore."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    if names is None:
        body = ast.parse(inspect.getsource(module)).body
        names = [node.name for node in body if hasattr(node, "name")]
        names += [node.targets[0].id for node in body if isinstance(node, ast.Assign)]
    return {f"{name}.{public}" for public in names if public[0] != "_"}


def require_documented(app, env):
    """Every public name is on some page."""
    public = set().union(*map(public_names, PUBLIC))
    for name in sorted(public - env.domains["py"].objects.keys()):
        logging.getLogger(__name__).warning("undocumented public name: %s", name)


def labels_as_fields(app, what, name, obj, options, lines):
    """Sets paragraphs such as "Derivatives: …" like the arguments above them.

    Napoleon knows "Returns", but takes what is before a colon for a type.
    """
    if what == "data":
        lines.clear()  # which are those of its class
    text = re.sub(r"^Returns:$", ":Returns:", "\n".join(lines), flags=re.M)
    labelled = re.compile(r" *(?=\b(?:Derivatives|Sharding|Source)[a-z ]*: )")
    paragraphs = text.split("\n\n")
    for i, paragraph in enumerate(paragraphs):
        if labelled.match(paragraph):
            fields = labelled.sub("\n", " ".join(paragraph.split())).strip()
            paragraphs[i] = re.sub(r"^([\w ]+):", r":\1:", fields, flags=re.M)
    lines[:] = "\n\n".join(paragraphs).split("\n")


def plain_names(app, what, name, obj, options, arguments, returns):
    """Sets enumerators, functions and aliases in signatures as the source has them."""
    printed = re.compile(
        r"<(?:built-in function )?(\w+(?:\.\w+)?)(?:: \d+)?>"
        r"|TypeAliasForwardRef\('(\w+)'\)"
    )
    return [text and printed.sub(r"\1\2", text) for text in (arguments, returns)]


def end_statements(app, doctree):
    """Lets sessions be pasted into an interactive shell.

    There an empty line ends a compound statement, and must not be within one. Programs
    without prompts keep their empty lines.
    """
    statement = re.compile(r"^>>> .*\n(?:\.\.\..*\n?)*", re.M)
    is_code = (nodes.literal_block, nodes.doctest_block)
    for block in doctree.findall(lambda node: isinstance(node, is_code)):
        if block.astext().startswith(">>> "):
            block.rawsource = statement.sub(with_end, block.astext() + "\n").rstrip(
                "\n"
            )
            block[:] = [nodes.Text(block.rawsource)]


def with_end(statement):
    lines = [line for line in statement[0].splitlines() if line != "..."]
    is_open = codeop.compile_command("\n".join(line[4:] for line in lines)) is None
    return "\n".join([*lines, *["..."] * is_open, ""])


def break_names(app, doctree, name):
    """Lets names in tables break after `_` and `.`, and nowhere else."""
    for entry in doctree.findall(nodes.entry):
        for literal in entry.findall(nodes.literal):
            parts = re.split(r"(?<=\w[_.])(?=\w)", literal.astext())
            may_break = nodes.raw("", "<wbr>", format="html")
            literal[:] = [nodes.Text(parts[0])]
            for part in parts[1:]:
                literal += [may_break.deepcopy(), nodes.Text(part)]


def setup(app):
    app.connect("doctree-read", end_statements)
    app.connect("doctree-resolved", break_names)
    app.connect("env-check-consistency", require_documented)
    app.connect("autodoc-process-docstring", labels_as_fields, priority=400)
    app.connect("autodoc-process-signature", plain_names)
