"""Command-line arguments from a dataclass, with every mistake told in one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from vecenv.errors import UnknownSetting

Arguments = TypeVar("Arguments")

#: What tyro says, and how we say it.
_SENTENCES = (
    (r"Missing from [^:]*: (--\S+) \S+ (.*?)\.? \(required\)", r"\1 is missing: \2"),
    (r"Missing value for argument '(.*?)'.*", r"\1 needs a value"),
    (
        r"Unrecognized options: ([^\s,;]+).*?; Perhaps you meant: (--[\w-]+).*",
        r"there is no option \1; did you mean \2?",
    ),
    (r"Unrecognized options: ([^\s,;]+).*", r"there is no option \1"),
    (r"invalid choice ('.*?') for argument '(.*?)'. Expected one of \((.*)\)", r"\2 must be one of \3, got \1"),
    (
        r"Error parsing (--\S+): .*invalid literal for int\(\) with base 10: ('.*?').*",
        r"\1 must be a whole number, got \2",
    ),
    (r"Error parsing (--\S+): .*could not convert string to float: ('.*?').*", r"\1 must be a number, got \2"),
    (r"Error parsing (?:settings|\w+Arguments): (.*)", r"\1"),
)


def parse_arguments(
    kind: type[Arguments], argv: Sequence[str], program: str, description: str, defaults: Arguments | None = None
) -> Arguments:
    """Parse ``argv`` into the dataclass ``kind``; ``--help`` prints and exits as usual.

    Args:
        kind: fields become flags, their docstrings the help.
        argv: words after the program's name.
        program: shown in messages.
        description: first lines of ``--help``.
        defaults: replaces the defaults of ``kind``; ``tyro.MISSING`` marks a field that must be given.

    Raises:
        UnknownSetting: for an unknown flag, a missing one or a value that does not parse; one line.
    """
    said: Any = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if defaults is None:
                return tyro.cli(kind, args=list(argv), prog=program, description=description)
            return tyro.cli(kind, args=list(argv), prog=program, description=description, default=defaults)
    except SystemExit as ended:
        if ended.code in (0, None):
            raise
    raise UnknownSetting(f"{_main_point(said.getvalue())} (see {program} --help)")


def flag_value(argv: Sequence[str], flag: str) -> str | None:
    """The value that ``argv`` gives to ``flag``, before any parsing; the last one wins, None when it is not there."""
    value = None
    for index, word in enumerate(argv):
        if word == flag and index + 1 < len(argv):
            value = argv[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def _main_point(box: str) -> str:
    """The sentence in tyro's framed message, without the frame, its title and where to find more.

    The title is the first line and says again what the sentence says; the last paragraph points to ``--help``, as our
    own message does. Frame and rulers are of hyphens and blanks where stderr is not for Unicode.
    """
    lines = [line.strip(" \t│|╭╮╰╯─") for line in box.splitlines()]
    paragraphs = [line if line.strip("-") else ";" for line in lines]
    text = " ".join(" ".join(paragraphs[1:] or paragraphs).split()).partition("For full helptext")[0].replace(" ;", ";")
    text = text.strip("; ").rstrip(".")
    for theirs, ours in _SENTENCES:
        match = re.fullmatch(theirs, text)
        if match is not None:
            return match.expand(ours)
    return text
