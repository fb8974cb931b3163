"""Sphinx roles of docstrings, as Markdown: ``:func:`~dgcl.launch``` becomes a link where the page has such a name."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`(~?)([\w.]+)`")


def as_link(match: re.Match[str]) -> str:
    """A link that may lead nowhere: not every name that a docstring mentions is public."""
    short, name = match.groups()
    target = name if name.startswith("dgcl") else f"dgcl.{name}"
    return f'<autoref identifier="{target}" optional><code>{name.split(".")[-1] if short else name}</code></autoref>'


class Roles(griffe.Extension):
    """For mkdocstrings."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of each module, class, function and attribute once it is read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(as_link, obj.docstring.value)
