"""``python -m vecenv``: the same front door as the command ``vecenv``."""

from __future__ import annotations

import sys

from vecenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
