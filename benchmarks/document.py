"""``vecenv bench document``: measures everything with fixed settings, and writes one page of tables and targets.

The page is made from the results in ``--folder`` alone; with ``--run`` those that are missing are measured first. What
ended well at the same commit on the same machine is not measured again, so after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.writable import check_writable

from .arguments import check_known, make_parser, words
from .document_entries import ENTRIES, find_entries
from .document_page import write_page
from .document_runs import measure_all, read_measured

FOLDER = Path("results") / "document"
PAGE = Path("docs") / "benchmarks.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure if asked to, and write the page.

    Args:
        argv: words after ``vecenv bench document``; None: those of this process.

    Returns:
        The exit code: 0; 1 if a measurement failed. The page is written all the same and says so.

    Raises:
        KeyboardInterrupt: Ctrl-C while measuring.
        MissingExtra: nothing can draw the pictures.
        UnknownSetting: an entry that does not exist, nothing to show, or a file that is no result.
    """
    names = [entry.name for entry in ENTRIES]
    long = [entry.name for entry in ENTRIES if entry.is_long]
    parser = make_parser("vecenv bench document", __doc__)
    parser.add_argument("--run", action="store_true", help="measure what is not there yet, one after the other")
    parser.add_argument("--quick", action="store_true", help="rough settings, in a folder and on a page of their own")
    parser.add_argument("--fresh", action="store_true", help="with --run: measure again what is there")
    text = f"what to measure, comma-separated: {', '.join(names)}; or all (default: all but {', '.join(long)})"
    parser.add_argument("--entries", type=words, metavar="NAMES", help=text)
    text = f"where results are kept (default {FOLDER}, with --quick {FOLDER}-quick)"
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help=text)
    text = f"the page; pictures go beside it (default {PAGE}, with --quick benchmarks.md in the folder)"
    parser.add_argument("--output", type=Path, metavar="PAGE.md", help=text)
    arguments = parser.parse_args(argv)
    folder: Path = arguments.folder or (Path(f"{FOLDER}-quick") if arguments.quick else FOLDER)
    page: Path = arguments.output or (folder / "benchmarks.md" if arguments.quick else PAGE)
    chosen = names if arguments.entries == ["all"] else arguments.entries or []
    check_known(chosen, names, "entry")
    _check(arguments, page)
    if arguments.run:
        check_writable(folder / "result.json", "--folder")
    failed = False
    if arguments.run:
        print(describe_machine())
        measured = measure_all(find_entries(chosen), folder, quick=arguments.quick, fresh=arguments.fresh)
        failed = any(one.failure is not None for one in measured)
    everything = [read_measured(folder, entry) for entry in ENTRIES]
    if all(one.run is None for one in everything):
        raise UnknownSetting(f"there is no result in {folder}; add --run")
    write_page(page, everything, quick=arguments.quick)
    print(f"written to {page}")
    return int(failed)


def _check(arguments: argparse.Namespace, page: Path) -> None:
    """Refuse before hours are spent on measuring."""
    if arguments.fresh and not arguments.run:
        raise UnknownSetting("--fresh goes together with --run only")
    if arguments.entries is not None and not arguments.run:
        raise UnknownSetting("--entries says what to measure: it goes together with --run only")
    if page.suffix != ".md":
        raise UnknownSetting(f"--output: the page is Markdown and must end in .md, got {page}")
    check_writable(page, "--output")
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "agents")
