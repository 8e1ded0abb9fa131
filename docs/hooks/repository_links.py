"""Links from a page to a file of the repository work on the site, too: the file comes along.

Pages are read in the repository as well, where `../results/budget.txt` is beside the folder of pages. On the site it
is inside.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()((?:\.\./)+)([^)#\s]+)")
"""The target of a link that leaves the folder of its page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, and those that such a file links to."""
    repository = Path(config.config_file_path).parent
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for target in targets(uri, text):
            source = repository / target
            if files.get_file_from_path(target) is not None or not source.is_file():
                continue  # a link to nothing is found by the check of links
            files.append(File.generated(config, target, abs_src_path=str(source)))
            if source.suffix == ".md":
                waiting.append((target, source.read_text(encoding="utf-8")))
    return files


def targets(uri: str, text: str) -> list[str]:
    """Files of the repository that a page links to; the pages are at `docs/`, or where they are in the repository.

    >>> targets("alarms.md", "[a](../results/budget.txt) [b](agent.md)")
    ['results/budget.txt']
    """
    folder = posixpath.dirname(uri)
    if folder:
        linked = re.findall(r"\]\(([^)#\s:]+)", text)
        return [posixpath.normpath(posixpath.join(folder, target)) for target in linked]
    return [target for _, up, target in LINK.findall(text) if up == "../"]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave the folder of pages into links inside the site."""
    return markdown if "/" in page.file.src_uri else LINK.sub(r"\1\3", markdown)
