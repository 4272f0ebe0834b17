"""For `make docs`: the comment behind a field, or above it, is the field's text in the reference."""

import ast
import re
from typing import Any

from griffe import Attribute, Docstring, Extension


class FieldComments(Extension):
    """Takes the comments of dataclasses and Flax modules as docstrings of their fields."""

    def on_attribute_instance(self, *, node: ast.AST | Any, attr: Attribute, **kwargs: Any) -> None:
        """Give one field its comment."""
        if attr.docstring is not None or not isinstance(node, ast.AnnAssign) or not attr.parent.is_class:
            return
        lines = attr.lines_collection[attr.filepath]
        behind = re.search(r"  # (.+)$", lines[node.end_lineno - 1][node.end_col_offset :])
        above = re.fullmatch(r"\s*# (.+)", lines[node.lineno - 2])
        if comment := behind or above:
            attr.docstring = Docstring(comment[1], lineno=node.lineno, endlineno=node.lineno, parent=attr)
