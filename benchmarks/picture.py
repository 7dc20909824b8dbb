"""Writing a figure of matplotlib to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def save_picture(figure: Any, path: Path) -> None:
    """Write a picture; an SVG is the same for the same figures: without a date, with fixed names inside.

    Args:
        figure: the figure.
        path: the file, whose folder is made; its suffix chooses the format.
    """
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "vecenv"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
