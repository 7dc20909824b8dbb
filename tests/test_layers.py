"""The rules of the source tree: imports point down only, heavy packages stay in their own files, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import FOLDERS, ROOT

MAPPED = ("preprocess", "agents", "benchmarks")

# What each layer may import of the layers; everything else points upwards.
ALLOWED_LAYERS = {
    "preprocess": {"preprocess"},
    "vecenv": {"vecenv", "preprocess"},
    "agents": {"vecenv", "preprocess", "agents"},
    "benchmarks": {"vecenv", "preprocess", "agents", "benchmarks"},
}
# Where a package may be imported; benchmarks measure the peers and may import anything.
ALLOWED_FILES = {
    "torch": {"agents/"},
    "tensorboard": {"agents/"},
    "rich": {"agents/"},
    "tyro": {"agents/"},
    "matplotlib": {"agents/"},
    "imageio": {"agents/"},
    "cv2": {"preprocess/reference.py"},
    "ale_py": {"vecenv/atari", "vecenv/ale_"},
    "envpool": {"vecenv/envpool_"},
    "stable_baselines3": {"vecenv/sb3"},
    "tianshou": {"vecenv/tianshou"},
    "ray": {"vecenv/ray_", "agents/ray_"},
}
MOST_LINES = 400

SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    package = FOLDERS[path.parent.name]
    return package if path.stem == "__init__" else f"{package}.{path.stem}"


def imports(path: Path, nodes: Iterator[ast.AST] | None = None) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything a file imports; names imported from a package are appended."""
    package = FOLDERS[path.parent.name]
    for node in ast.walk(ast.parse(path.read_text())) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - (node.level - 1)]
                base = ".".join([*anchor, base] if base else anchor)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer(name: str) -> str | None:
    """The layer that a dotted name belongs to, None for packages of others."""
    first, _, rest = name.partition(".")
    if first != "vecenv":
        return None
    second = rest.partition(".")[0]
    return second if second in MAPPED else "vecenv"


def test_sources_are_found() -> None:
    assert len(SOURCES) > 10
    assert {path.parent.name for path in SOURCES} == set(FOLDERS)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_down_only(path: Path) -> None:
    allowed = ALLOWED_LAYERS[path.parent.name]
    wrong = [f"line {line}: {name}" for line, name in imports(path) if layer(name) not in allowed | {None}]
    assert not wrong, f"{relative(path)} imports a layer above its own: {wrong}"


@pytest.mark.parametrize("path", SOURCES + sorted((ROOT / "tests").glob("*.py")), ids=relative)
def test_no_bare_import_of_a_mapped_folder(path: Path) -> None:
    if path.parent.name == "tests":
        nodes = ast.walk(ast.parse(path.read_text()))
        names = [
            name
            for node in nodes
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
        ]
    else:
        names = [name for _, name in imports(path)]
    wrong = [name for name in names if name.partition(".")[0] in MAPPED]
    assert not wrong, (
        f"{relative(path)}: import vecenv.{wrong[0]}; a bare {wrong[0]} is whatever lies beside the script"
    )


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parent.name != "benchmarks"], ids=relative)
def test_heavy_packages_stay_in_their_own_files(path: Path) -> None:
    for line, name in imports(path):
        places = ALLOWED_FILES.get(name.partition(".")[0])
        if places is not None:
            assert relative(path).startswith(tuple(places)), (
                f"{relative(path)}, line {line}: {name} belongs in {places}"
            )


@pytest.mark.parametrize("path", sorted((ROOT / "preprocess").glob("*.py")), ids=relative)
def test_preprocess_needs_only_numpy_and_numba(path: Path) -> None:
    allowed = {"numpy", "numba", "vecenv", *sys.stdlib_module_names}
    if path.name == "wrappers.py":
        allowed.add("gymnasium")
    if path.name == "reference.py":
        allowed.add("cv2")
    wrong = [f"line {line}: {name}" for line, name in imports(path) if name.partition(".")[0] not in allowed]
    assert not wrong, f"{relative(path)} imports {wrong}"


def at_import_time(path: Path) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: function bodies and TYPE_CHECKING blocks left out."""
    todo: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        yield node
        todo += list(ast.iter_child_nodes(node))


def test_no_import_cycle() -> None:
    modules = {module_name(path) for path in SOURCES}
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        targets = set()
        for _, name in imports(path, at_import_time(path)):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                targets.add(name)
        graph[module_name(path)] = targets - {module_name(path)}
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    assert not graph, f"these modules import each other in a circle, or such a circle: {sorted(graph)}"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{relative(path)} has {lines} lines; one file, one job"


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in sys.modules after a statement ran in a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint('loaded:', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT.parent
    )
    return set(finished.stdout.strip().splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "statement",
    [
        "import vecenv",
        "import vecenv, vecenv.errors, vecenv.cli, vecenv.doctor",
        "import vecenv.preprocess, vecenv.agents, vecenv.benchmarks",
        "from vecenv.doctor import report; report()",
    ],
)
def test_importing_vecenv_brings_nothing_heavy(statement: str) -> None:
    heavy = {"torch", "numba", "envpool", "ale_py", "cv2", "matplotlib", "rich", "tyro", "psutil", "stable_baselines3"}
    loaded = loaded_by(statement)
    assert "vecenv" in loaded
    assert not loaded & heavy
