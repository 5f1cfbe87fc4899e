"""An extension of griffe: the comment behind a field is its docstring, so that the API's pages say what fields mean."""

import re
from pathlib import Path

import griffe

COMMENT = re.compile(r"  # (.+)$")


class FieldComments(griffe.Extension):
    """Gives attributes of classes the comments behind them as docstrings."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        found = COMMENT.search(attr.lines_collection[Path(str(attr.filepath))][(attr.endlineno or 1) - 1])
        if found and attr.parent is not None and attr.parent.is_class and not attr.has_docstring:
            attr.docstring = griffe.Docstring(found[1], parent=attr, lineno=attr.endlineno)
