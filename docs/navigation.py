"""Pages that are there only once a command has written them: they get their place in the navigation when they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Page -> section of the navigation that it begins.
WRITTEN_PAGES = {"benchmarks.md": "Figures"}


def on_config(config: Any) -> Any:
    """Put the pages that exist into the navigation; MkDocs calls this before it looks for files."""
    for page, section in WRITTEN_PAGES.items():
        if not (Path(config["docs_dir"]) / page).is_file():
            continue
        for entry in config["nav"]:
            if isinstance(entry, dict) and section in entry and page not in entry[section]:
                entry[section].insert(0, page)
    return config
