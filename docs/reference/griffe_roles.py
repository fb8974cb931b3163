"""What mkdocstrings does not know of our docstrings.

Sphinx roles become Markdown: ``:func:`~dgcl.launch``` is a link where the page has such a name. And an entry of several
names, ``method, plan: As of ...``, becomes one for each, since each is looked for among the parameters.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`(~?)([\w.]+)`")


NAMES = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.MULTILINE)


def one_by_one(match: re.Match[str]) -> str:
    """An entry for each of several names."""
    indent, names, text = match.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))


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
            obj.docstring.value = ROLE.sub(as_link, NAMES.sub(one_by_one, obj.docstring.value))
