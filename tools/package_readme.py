"""The README for a package index, which has none of the files that it links to: only the text of such links is kept.

hatchling calls this when it builds the package; see `[tool.hatch.metadata.hooks.custom]` in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[(?P<text>[^\]\[]+)\]\((?P<target>[^)\s]+)\)")


def without_relative_links(markdown: str) -> str:
    """Replace each link to a file of the repository with its text; code blocks have no links.

    Args:
        markdown: The README.
    """
    return _LINK.sub(lambda link: link[0] if "://" in link["target"] else link["text"], markdown)


class PackageReadme(MetadataHookInterface):
    """Sets the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text)}
