"""Sphinx configuration. Built with warnings as errors by `make docs`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from hmc import __version__

project = "HMC"
author = "the HMC authors"
copyright = "2026, the HMC authors"
release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"HMC {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3


def _stub() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions, methods and properties of the extension by dotted name, as hmc/_core.pyi declares them."""
    found = {}
    for node in ast.parse((Path(__file__).parents[1] / "hmc" / "_core.pyi").read_text()).body:
        for member in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[f"{node.name}.{member.name}" if member is not node else member.name] = member
    return found


STUB = _stub()


def _readable(source: str) -> str:
    return source.replace("typing.SupportsIndex", "int").replace(": typing.Any", "").replace("typing.", "")


def _signature(_app: Any, what: str, name: str, _object: Any, _options: Any, signature: str | None, returns: str | None) -> Any:
    """The stub's signature in place of what pybind11 writes."""
    declared = STUB.get(name.removeprefix("hmc."))
    if what == "class" and not declared:
        declared = STUB.get(name.removeprefix("hmc.") + ".__init__")
        if declared and declared.args.vararg:
            return ("", None)  # made by HMC only
    if not declared or what not in {"class", "function", "method"}:
        return (signature, returns)
    arguments = declared.args
    if arguments.args and arguments.args[0].arg == "self":
        del arguments.args[0]
    result = _readable(ast.unparse(declared.returns)) if declared.returns and what != "class" else None
    return (f"({_readable(ast.unparse(arguments))})", None if result == "Any" else result)


def _property(_app: Any, what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Properties of the extension have no annotation: their type is the stub's."""
    declared = STUB.get(name.removeprefix("hmc."))
    if what in {"property", "attribute"} and declared and declared.returns and lines:
        lines[0] = f"(*{_readable(ast.unparse(declared.returns))}*) {lines[0]}"


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _property)
