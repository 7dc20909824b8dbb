"""Which back end can do what: one table, printed by ``vecenv doctor --capabilities`` and shown in the README."""

from __future__ import annotations

import importlib

from vecenv.engines import ENGINES

NATIVE = "native"
EMULATED = "emulated"
REFUSED = "refused"
#: What a cell of the table may say. Native: the back end's own way. Emulated: same results, by a detour of the adapter.
#: Refused: the call raises `NotImplementedError` or `UnknownSetting` with one sentence.
LEVELS = (NATIVE, EMULATED, REFUSED)

#: Name of a feature -> what it is. Engine modules name all of them in their ``CAPABILITIES: dict[str, str]``.
FEATURES = {
    "NextStep": "autoreset at the step after an end",
    "SameStep": "autoreset within the step that ends an episode",
    "Disabled": "no autoreset; ended envs wait for a reset",
    "partial reset": '`reset(options={"reset_mask": ...})`',
    "per-env seeds": "`reset(seed=[3, 9, 5])`",
    "batch_size": "`send`/`recv` of fewer envs than there are",
    "statistics": '`statistics=True`: `infos["episode"]`; `episode_statistics()`',
    "copy=False": "observations as views of a ring of `slots` batches",
    "out=": "observations written into the caller's array",
    "get_state": "`get_state()` and `set_state(...)`",
    "call": "`call(...)` and `get_attr(...)` of every env",
    "set_attr": "`set_attr(...)`; `compiled` sets `state` only",
    "render": '`render_mode="rgb_array"` and `render()`',
    "per_env_kwargs": "envs of one batch that are built differently",
    "wrappers": "`wrappers=[...]` around every env",
    "worker restart": '`on_worker_failure="restart"`',
    "custom spaces": "Text, Sequence, Graph, OneOf and spaces of your own",
}

_PYTHON_ENVS = dict.fromkeys(FEATURES, NATIVE)
_OWN = {
    "sync": {**_PYTHON_ENVS, "batch_size": EMULATED, "worker restart": REFUSED},
    "subproc": {**_PYTHON_ENVS, "custom spaces": EMULATED},
}


def capabilities() -> dict[str, dict[str, str]]:
    """The table.

    Returns:
        Back end -> feature -> one of `LEVELS`; `sync` and `subproc` first, then the engines.

    Raises:
        ValueError: an engine leaves a feature out, names one that does not exist, or says something else of it.
    """
    table = {name: dict(cells) for name, cells in _OWN.items()}
    for name, home in ENGINES.items():
        cells: dict[str, str] = importlib.import_module(home).CAPABILITIES
        wrong = sorted(set(cells) ^ set(FEATURES))
        if wrong or not set(cells.values()) <= set(LEVELS):
            raise ValueError(f"CAPABILITIES of {name!r}: expected {list(FEATURES)} with one of {LEVELS}, got {cells}")
        table[name] = dict(cells)
    return table


def markdown_table() -> str:
    """The table as Markdown, a row per feature and a column per back end."""
    table = capabilities()
    lines = [
        f"| feature | {' | '.join(f'`{name}`' for name in table)} | what it is |",
        f"|---|{'---|' * len(table)}---|",
    ]
    for feature, text in FEATURES.items():
        lines.append(f"| {feature} | {' | '.join(cells[feature] for cells in table.values())} | {text} |")
    return "\n".join(lines)
