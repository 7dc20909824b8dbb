"""What the commands of this folder read from the command line, each kind of word once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vecenv.errors import UnknownSetting


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    return _whole_number(text, 1)


def natural_number(text: str) -> int:
    """A whole number of at least 0, as seeds are."""
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
    return value


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return value


def words(text: str) -> list[str]:
    """Words between commas; none where there is nothing. A word that comes twice counts once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def some_words(text: str) -> list[str]:
    """As `words`, at least one of them."""
    values = words(text)
    if not values:
        raise argparse.ArgumentTypeError("must be at least one name")
    return values


def positive_ints(text: str) -> list[int]:
    """Whole numbers of at least 1 between commas, at least one of them."""
    values = [positive_int(word) for word in words(text)]
    if not values:
        raise argparse.ArgumentTypeError("must be at least one number")
    return values


def make_parser(program: str, document: str | None) -> argparse.ArgumentParser:
    """A parser that introduces itself with the first sentence of its module, without the program's name before it.

    Args:
        program: how the user calls it.
        document: the module's ``__doc__``.
    """
    text = (document or "").strip().partition("\n\n")[0].rpartition("``: ")[2]
    return argparse.ArgumentParser(prog=program, description=text[:1].upper() + text[1:])


def check_known(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuse a name that does not exist.

    Args:
        names: as given by the user.
        known: what there is.
        what: what a name stands for, such as ``"peer"``.

    Raises:
        UnknownSetting: the message lists what exists.
    """
    for name in names:
        if name not in known:
            raise UnknownSetting(f"there is no {what} {name!r}; available: {', '.join(known)}")


def add_timing(parser: argparse.ArgumentParser, *, rounds: int, seconds: float | None = None) -> None:
    """Add ``--rounds`` and, where a default is given, ``--seconds``."""
    text = f"alternating rounds (default {rounds})"
    parser.add_argument("--rounds", type=positive_int, default=rounds, metavar="N", help=text)
    if seconds is not None:
        text = f"length of one sample in seconds (default {seconds:g})"
        parser.add_argument("--seconds", type=positive_number, default=seconds, metavar="S", help=text)


def add_quick(parser: argparse.ArgumentParser, *, rounds: int, seconds: float) -> None:
    """Add ``--quick``, which stands for ``--rounds`` and ``--seconds`` with these values."""
    text = f"rough: the same as --rounds {rounds} --seconds {seconds:g}"
    parser.add_argument("--quick", action=_Quick, nargs=0, const=(rounds, seconds), help=text)


class _Quick(argparse.Action):
    """Sets the timing that it holds."""

    def __call__(self, parser: object, namespace: argparse.Namespace, *_: object) -> None:
        """Called where the option is met; what comes behind it on the command line still counts."""
        namespace.rounds, namespace.seconds = self.const


def add_output(parser: argparse.ArgumentParser, name: str, *, plot: str = "") -> None:
    """Add ``--json`` and ``--compare``, and ``--plot`` where there is something to draw.

    Args:
        parser: gets the arguments.
        name: of the file written by default, before the time of day.
        plot: what ``--plot`` draws.
    """
    text = f"where to write the result (default results/{name}-TIME.json)"
    parser.add_argument("--json", type=Path, metavar="NEW.json", help=text)
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="an earlier result; exit status 1 if something of ours is slower than there beyond noise",
    )
    if plot:
        parser.add_argument("--plot", type=Path, metavar="PICTURE", help=f"where to draw {plot}, such as {name}.png")
