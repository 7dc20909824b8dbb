"""`vecenv doctor`: the facts, the troubles, the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vecenv import cli, cores, doctor, doctor_checks, memory


def test_text_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """Envs are really built: this machine passes."""
    assert cli.main(["doctor", "--env", "CartPole-v1"]) == 0
    text = capsys.readouterr().out
    for words in (
        "usable_cores", "affinity", "control group", "total", "available", "/dev/shm", "open files", "per CartPole-v1",
        "numpy", "  sync  ", "  subproc  ", "adapters", "kernels", "gpu", "trouble\n  none",
    ):  # fmt: skip
        assert words in text, words


def test_json_tells_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json", "--no-run"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["machine"]["usable_cores"] >= 1
    assert facts["packages"]["numpy"]
    assert facts["backends"]["sync"] is True
    assert facts["cores"]["affinity"] >= facts["cores"]["usable"]
    assert facts["memory"]["total"] > 2**28
    assert facts["memory_per_env"] == {}
    assert facts["trouble"] == []
    assert facts["system"]


def test_what_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(doctor.OPTIONAL_PACKAGES, "nothing", doctor.OptionalPackage("no-such-distribution", "atari"))
    assert cli.main(["doctor", "--no-run"]) == 0  # what is optional is no trouble
    assert "not installed; run: pip install 'vecenv[atari]'" in capsys.readouterr().out


def test_back_ends_and_adapters_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("envpool", "ale_py", "ray", "stable_baselines3")
    find = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in missing else find(name))
    statuses = {status.name: status for status in [*doctor.backend_statuses(), *doctor.adapter_statuses()]}
    assert statuses["sync"].available
    assert statuses["gymnasium"].available
    for name, extra in (("envpool", "envpool"), ("ale", "atari"), ("ray", "ray"), ("stable-baselines3", "sb3")):
        if name in statuses:
            assert not statuses[name].available
            assert f"pip install 'vecenv[{extra}]'" in statuses[name].note
    assert statuses["rllib"].note == "ray is not installed; run: pip install 'vecenv[rllib]'"
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "lz4" else True)
    assert doctor.adapter_statuses()[-1].note == "lz4 is not installed; run: pip install 'vecenv[rllib]'"
    monkeypatch.setattr(doctor, "find_spec", lambda name: True)
    assert doctor.adapter_statuses()[-1] == doctor.BackendStatus(
        "rllib", True, "envs for its EnvRunners: vecenv.ray_rllib.make_env"
    )
    monkeypatch.setattr(sys, "platform", "win32")
    statuses = {status.name: status for status in doctor.backend_statuses()}
    assert not statuses["subproc"].available
    assert "backend='sync'" in statuses["subproc"].note


def test_windows_is_not_said_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    support = doctor.diagnose([], run=False)["system"]
    assert support.endswith("subproc is refused; sync, compiled and ale have not been tried on Windows")


def test_every_engine_is_described() -> None:
    assert set(doctor._ENGINE_FACTS) == set(doctor.ENGINES)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("failing_workers", lambda: "OSError: no memfd", "worker processes do not work here: OSError: no memfd"),
        ("outdated_packages", lambda: iter(["numpy 1.0 is older than the 1.26"]), "numpy 1.0 is older"),
        ("numba_cache", lambda: {"state": "off: NUMBA_DISABLE_JIT is set"}, "NUMBA_DISABLE_JIT"),
    ],
)
def test_trouble_is_told_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, value: object, words: str
) -> None:
    monkeypatch.setattr(doctor, "failing_workers", lambda: None)
    monkeypatch.setattr(doctor, "memory_per_env", lambda env_id: 4096)
    monkeypatch.setattr(doctor, place, value)
    assert cli.main(["doctor"]) == 1
    assert words in capsys.readouterr().out
    assert cli.main(["doctor", "--json"]) == 1
    assert words in json.loads(capsys.readouterr().out)["trouble"][0]


def test_an_env_that_cannot_be_built_is_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "failing_workers", lambda: None)
    assert cli.main(["doctor", "--env", "NoSuchEnv-v0"]) == 1
    assert "NoSuchEnv" in capsys.readouterr().out.partition("trouble")[2]


def test_workers_that_fail_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_checks.failing_workers() is None
    monkeypatch.setattr(doctor_checks, "_SUBPROC_SCRIPT", "raise OSError('no such thing')")
    assert doctor_checks.failing_workers() == "OSError: no such thing"
    monkeypatch.setattr(doctor_checks, "_SUBPROC_SCRIPT", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor_checks, "_CHECK_SECONDS", 0.5)
    assert "did not answer" in str(doctor_checks.failing_workers())


def test_versions_are_compared_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["numpy>=1.26", "numba>=0.61", "gone>=2", 'torch>=2.4; extra == "agents"', 'absent; extra == "x"']
    required.append('setuptools>=77; extra == "dev"')  # every new virtual environment has an older one
    versions = {"numpy": "1.100.1", "numba": "0.9.0rc1", "torch": "2.10.0+cpu", "setuptools": "65.5"}

    def version(name: str) -> str:
        if name not in versions:
            raise doctor_checks.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor_checks, "requires", lambda name: required)
    monkeypatch.setattr(doctor_checks, "version", version)
    sentences = list(doctor_checks.outdated_packages())
    assert len(sentences) == 2
    assert sentences[0].startswith("numba 0.9.0rc1 is older than the 0.61")
    assert sentences[1].startswith("gone is not installed")


def test_state_of_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    source = Path(doctor_checks.find_spec("vecenv.preprocess.kernels").origin)  # type: ignore[union-attr,arg-type]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    name = "vecenv.preprocess.kernels"
    assert doctor_checks.numba_cache()[name] == f"compiled at first use, in {tmp_path}"
    index = tmp_path / "preprocess_123" / f"kernels.f-1.py{sys.version_info.major}{sys.version_info.minor}.nbi"
    index.parent.mkdir()
    index.touch()
    assert doctor_checks.numba_cache()[name] == f"compiled, in {tmp_path}"
    os.utime(index, (source.stat().st_mtime - 100,) * 2)
    assert doctor_checks.numba_cache()[name].startswith("compiled at first use")  # the source is newer
    monkeypatch.setattr(doctor_checks, "_can_write", lambda folder: False)
    assert doctor_checks.numba_cache()[name].startswith("no folder can be written")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert doctor_checks.numba_cache()["state"].startswith("off")


def test_numba_agrees_about_the_folder(tmp_path: Path) -> None:
    """The folder that we foretell is the one that Numba writes to."""
    script = "import numba\n@numba.njit(cache=True)\ndef f(x):\n    return x + 1\nf(1)\n"
    (tmp_path / "module.py").write_text(script)
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "module.py"], cwd=tmp_path, env=environment, check=True, timeout=120)
    assert list(cache.glob("**/module.*.nbi"))


def test_gpu_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "version", lambda name: "2.13.0+cpu")
    assert "use the CPU" in doctor_checks.gpu_note([])
    assert "build for the CPU" in doctor_checks.gpu_note(["A GPU"])
    monkeypatch.setattr(doctor_checks, "version", lambda name: "2.13.0")
    assert doctor_checks.gpu_note(["A GPU"]) == "A GPU; PyTorch 2.13.0"


def test_cores_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "affinity_cores", lambda: 8)
    for quota, expected in ((None, 8), (2.5, 2), (0.5, 1), (64.0, 8)):
        monkeypatch.setattr(cores, "control_group_quota", lambda quota=quota: quota)
        assert cores.usable_cores() == expected


def test_the_current_folder_does_not_get_into_the_processes_that_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vecenv", "gymnasium", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    memory.memory_per_env("CartPole-v1")
    assert doctor_checks.failing_workers() is None


def test_memory_per_env_is_measured() -> None:
    """A few kilobytes for a cart and its rows of the batch."""
    small = memory.memory_per_env("CartPole-v1")
    if small is None:
        pytest.skip("the system does not tell")
    assert 0 < small < 2**18
    with pytest.raises(RuntimeError, match=r"NoSuchEnv-v0.*does not exist"):
        memory.memory_per_env("NoSuchEnv-v0")


def test_a_fifth_of_the_memory_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 800)
    monkeypatch.setattr(memory, "total_memory", lambda: 1000)
    monkeypatch.setattr(memory, "_control_group_limit", lambda: None)
    assert memory.largest_num_envs(10) == 60
    monkeypatch.setattr(memory, "_control_group_limit", lambda: 500)
    assert memory.largest_num_envs(10) == 70
    monkeypatch.setattr(memory, "available_memory", lambda: 50)
    assert memory.largest_num_envs(10) == 0
    assert memory.largest_num_envs(0) is None
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    assert memory.largest_num_envs(10) is None
