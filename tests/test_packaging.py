"""The package list, the mapped folders, and what a checkout that was never installed says."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from source_tree import FOLDERS, ROOT

from vecenv.doctor import CORE_PACKAGES, OPTIONAL_PACKAGES


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirement_names(text: str) -> set[str]:
    return {re.split(r"[<>=\[ ]", line.strip())[0] for line in text.splitlines() if line.strip()}


def test_package_list_is_the_folders_with_python_files(setup_cfg: configparser.ConfigParser) -> None:
    listed = set(setup_cfg["options"]["packages"].split())
    mapping = dict(re.findall(r"^(\S+) = (\S+)$", setup_cfg["options"]["package_dir"], re.MULTILINE))
    assert listed == set(FOLDERS.values())
    assert mapping == {package: folder for folder, package in FOLDERS.items()}
    for folder in FOLDERS:
        assert (ROOT / folder / "__init__.py").is_file()


def test_packages_are_flat() -> None:
    """A nested package would silently be missing from the wheel."""
    nested = [
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path.parent != ROOT / folder
    ]
    assert not nested


@pytest.mark.parametrize("name", ["preprocess", "agents", "benchmarks"])
def test_mapped_folder_is_not_hidden(name: str) -> None:
    """Even an empty vecenv/preprocess/ would be found before the mapped folder."""
    assert not (ROOT / "vecenv" / name).exists()
    spec = find_spec(f"vecenv.{name}")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).name == "__init__.py"


def test_extras_install_what_the_code_asks_for(setup_cfg: configparser.ConfigParser) -> None:
    """The extra named in "pip install 'vecenv[extra]'" installs the package that was missing."""
    extras = setup_cfg["options.extras_require"]
    for package in OPTIONAL_PACKAGES.values():
        assert package.distribution in requirement_names(extras[package.extra]), package
    assert requirement_names(setup_cfg["options"]["install_requires"]) == set(CORE_PACKAGES) - {"vecenv"}


def test_every_requirement_is_pinned(setup_cfg: configparser.ConfigParser) -> None:
    text = "\n".join([setup_cfg["options"]["install_requires"], *setup_cfg["options.extras_require"].values()])
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line.strip() and not line.startswith("#"))
    pinned = {name.lower().replace("_", "-") for name in pins}
    assert requirement_names(text) - {"vecenv"} <= pinned
    assert pins["torch"] == "2.13.0"
    assert not [version for version in pins.values() if "+" in version], "a local version exists on one machine only"


def test_uninstalled_checkout_names_the_command(tmp_path: Path) -> None:
    """Without site-packages, but with pytest itself reachable: one sentence, no ImportError."""
    needed = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
    for name in needed:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (tmp_path / source.name).symlink_to(source)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pytest; sys.exit(pytest.main([]))"
    finished = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == 4, output
    assert "make setup" in output
    assert "Traceback" not in output
    assert "ImportError" not in output
