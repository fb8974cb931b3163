"""Names, below each page of the site, the version that the pages describe."""

from typing import Any

from dgcl import __version__


def on_config(config: Any) -> None:
    """Called by mkdocs once it has read its settings."""
    config.copyright = f"These pages describe dgcl {__version__}. Apache-2.0."
