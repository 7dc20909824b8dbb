"""The folders of the source tree: what the tests about layers and about packaging share."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "vecenv": "vecenv",
    "preprocess": "vecenv.preprocess",
    "agents": "vecenv.agents",
    "benchmarks": "vecenv.benchmarks",
}
