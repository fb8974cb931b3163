"""Makes the front page of README.md, and names below each page the version that the pages describe."""

import re
import tomllib
from pathlib import Path
from typing import Any

from dgcl import __version__

ROOT = Path(__file__).resolve().parents[1]


def on_config(config: Any) -> None:
    """Called by mkdocs once it has read its settings."""
    config.copyright = f"These pages describe dgcl {__version__}. Apache-2.0."


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page: the front page is README, its links as they are from here."""
    return front_page() if page.file.src_uri == "index.md" else markdown


def front_page() -> str:
    """README with links to pages of the site, and to the repository for other files."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    text = (ROOT / "README.md").read_text().replace("front.svg)", 'front.svg){ width="400" }')
    return re.sub(r"\]\((?!docs/|https?:)", f"]({source}/blob/main/", text).replace("](docs/", "](")
