"""Pages that the repository shows first are pages of the site, too: its README is the front page."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository, and where they are on the site."""

LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")
"""The target of a link to a file."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add those pages that the repository has, with links as if they were in the folder of pages."""
    repository = Path(config.config_file_path).parent
    for name, uri in PAGES.items():
        if (repository / name).is_file():
            text = (repository / name).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=from_docs(text)))
    return files


def from_docs(text: str) -> str:
    """Turn links from the root of the repository into links from `docs/`.

    >>> from_docs("[a](docs/agent.md#time) [b](LICENSE) [c](README.md) [d](https://flower.ai) [e](#f)")
    '[a](agent.md#time) [b](../LICENSE) [c](index.md) [d](https://flower.ai) [e](#f)'
    """
    return LINK.sub(lambda link: link[1] + target(link[2]), text)


def target(path: str) -> str:
    """Where a file of the repository is, seen from `docs/`."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}")
