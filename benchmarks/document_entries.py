"""The measurements that ``vecenv bench document`` makes and shows, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from .contestants import BACKENDS, Contender
from .ladder import CONTEXT_ONLY
from .peers import PEERS

PONG = "PongNoFrameskip-v4"
GAMES: tuple[str, ...] = ("Pong", "Breakout", "Seaquest", "MsPacman", "Qbert", "SpaceInvaders", "Freeway")
GAMES += ("MontezumaRevenge", "BeamRider", "Enduro")
GAME_IDS = ",".join(f"{game}NoFrameskip-v4" for game in GAMES)
SHORT = ("--rounds", "3", "--seconds", "0.2")


@dataclass(frozen=True)
class Entry:
    """One measurement.

    Attributes:
        name: a word, also that of its files.
        title: heading.
        words: what stands after ``vecenv bench``.
        quick_words: the same with ``--quick``: rough, and fast.
        contenders: option -> contenders by name; those whose package is not installed are left out and named.
        note: a paragraph above the tables, in Markdown.
        is_long: it is made only where it is asked for by name.
        kept_by: option, and name of the file or folder after it, in which it keeps what has ended of it: after an
            interruption it goes on. None where it begins anew.
    """

    name: str
    title: str
    words: tuple[str, ...]
    quick_words: tuple[str, ...]
    contenders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""
    is_long: bool = False
    kept_by: tuple[str, str] | None = None

    @property
    def verb(self) -> str:
        """Which benchmark it is."""
        return self.words[0]


def command_of(entry: Entry, *, quick: bool) -> tuple[list[str], list[str]]:
    """The words of its command on this machine, and a line for everything that is not installed here.

    Args:
        entry: the measurement.
        quick: whether the rough settings are wanted.
    """
    command, missing = list(entry.quick_words if quick else entry.words), []
    everyone: Mapping[str, Contender] = {**BACKENDS, **PEERS}
    options: list[str] = []
    for option, names in entry.contenders.items():
        here = [name for name in names if not everyone[name].module or find_spec(everyone[name].module)]
        options += [option, ",".join(here)]
        missing += [f"{everyone[n].title}: {everyone[n].distribution} is not installed" for n in names if n not in here]
    place = command.index("--") if "--" in command else len(command)
    return [*command[:place], *options, *command[place:]], missing


def find_entries(names: Sequence[str]) -> list[Entry]:
    """Entries by name, in the order of the page; those that are not long where there is no name."""
    return [entry for entry in ENTRIES if (entry.name in names if names else not entry.is_long)]


def _speedups(key: str, title: str, accounts: str) -> Entry:
    note = (
        f"The column *theirs* quotes {accounts}. {CONTEXT_ONLY} *x base* is the rate as a multiple of the first "
        "rung's, *x before* as a multiple of the rate of the rung that this one changes."
    )
    return Entry(
        f"speedups-{key}",
        f"Speed ladder: {title}",
        ("speedups", key),
        ("speedups", key, "--quick"),
        note=note,
    )


def _solved(key: str, title: str, seeds: int) -> Entry:
    return Entry(
        f"solved-{key}",
        f"Speed ladder to the mark: {title}",
        ("speedups", key, "--solve", "--seeds", str(seeds)),
        ("speedups", key, "--solve", "--seeds", "1", "--minutes", "0.5"),
        note="Wall clock until the mark is reached; a training that has not reached it counts as longer than any.",
        is_long=True,
        kept_by=("--solved", "solved.csv"),
    )


_CARTPOLE = ("learning", "--algorithms", "ppo,dqn,es", "--envs", "CartPole-v1", "--solve-at", "475")
_PONG_TO_MARK = ("--envs", PONG, "--solve-at", "18", "--minutes")
_PONG_PPO = ("learning", "--algorithms", "ppo", *_PONG_TO_MARK, "20")
_PONG_DQN = ("learning", "--algorithms", "dqn", *_PONG_TO_MARK, "45")
_CHEETAH = ("learning", "--algorithms", "es", "--envs", "HalfCheetah-v5")
_LEARNING = (
    "Lines are medians over the seeds, bands reach from the 10th to the 90th percentile over them. A training "
    "that has ended keeps its last value; one without the mark counts as longer than any that reached it. Seconds "
    "begin before the environments are built; starting Python and importing PyTorch are not in them."
)


def _long_learning(key: str, title: str, words: tuple[str, ...], quick_words: tuple[str, ...]) -> Entry:
    return Entry(
        f"learning-{key}",
        f"Learning: {title}",
        words,
        quick_words,
        note=_LEARNING,
        is_long=True,
        kept_by=("--run-dir", "trainings"),
    )


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "throughput-pong",
        "Pong, 16 environments",
        ("throughput", PONG, "--num-envs", "16", "--backends", "subproc"),
        ("throughput", PONG, "--num-envs", "16", "--backends", "subproc", "--quick"),
        {"--peers": ("gymnasium-async", "ale", "envpool", "sb3")},
        "Gray 84x84x4, skip 4, max-pooling, no sticky actions. The emulator limit is `act` alone on every core.",
    ),
    Entry(
        "limits",
        "Ten games against their own limits",
        ("limits", GAME_IDS),
        ("limits", GAME_IDS, *SHORT),
        note="What each column adds, and where the time goes, is told in [Atari speed](atari-speed.md).",
    ),
    Entry(
        "wrappers",
        "The stages of an Atari step",
        ("wrappers", PONG),
        ("wrappers", PONG, "--rounds", "3", "--seconds", "0.05"),
        note="Microseconds per agent step (4 frames), one environment.",
    ),
    Entry(
        "throughput-cartpole",
        "CartPole",
        ("throughput", "CartPole-v1", "--num-envs", "8,64", "--backends", "subproc,sync,compiled"),
        ("throughput", "CartPole-v1", "--num-envs", "8", "--backends", "subproc,sync,compiled", "--quick"),
        {"--peers": ("gymnasium-async", "gymnasium-sync", "gymnasium-vector", "envpool")},
    ),
    Entry("compiled", "CartPole as one kernel", ("compiled",), ("compiled", *SHORT)),
    Entry("workers", "Rounds of workers", ("workers",), ("workers", *SHORT)),
    Entry(
        "startup",
        "Start-up and memory",
        ("startup", "--env", PONG, "--num-envs", "16"),
        ("startup", "--env", PONG, "--num-envs", "16", "--builds", "1", "--rounds", "1", "--backends", "subproc"),
        note="Seconds from nothing to the first step, in fresh interpreters.",
    ),
    Entry(
        "startup-spawn",
        "Memory of workers that are spawned",
        ("startup", "--env", PONG, "--num-envs", "16", "--start-method", "spawn", "--rounds", "3"),
        ("startup", "--env", PONG, "--num-envs", "16", "--start-method", "spawn", "--rounds", "1", "--builds", "1"),
    ),
    Entry(
        "inference",
        "Inference",
        ("inference",),
        ("inference", "--batch-sizes", "1,32", *SHORT),
        note="Actions per second of the small network for images, over the number of environments in a batch.",
    ),
    Entry(
        "engines",
        "What the adapters of engines cost",
        ("engines", PONG, "--rounds", "150"),
        ("engines", PONG, "--rounds", "2", "--seconds", "0.05"),
        {"--engines": ("ale", "envpool")},
        "The same engine used bare plays the same steps in turns; a cost below 0 means that ours was faster.",
    ),
    Entry(
        "adapters-cartpole",
        "Trainers of others on CartPole",
        ("adapters", "CartPole-v1"),
        ("adapters", "CartPole-v1", "--rounds", "3", "--seconds", "0.5"),
    ),
    Entry(
        "adapters-pong",
        "Stable-Baselines3 on Pong",
        ("adapters", PONG, "--trainer", "sb3"),
        ("adapters", PONG, "--trainer", "sb3", "--rounds", "1", "--seconds", "0.5", "--rollout-steps", "16"),
    ),
    _speedups(
        "dqn",
        "DQN on Pong",
        "written accounts of two earlier implementations of this ladder: document 1 is the newer one, on hardware that "
        "is not known here, document 2 was measured on a GTX 1080 Ti",
    ),
    _speedups(
        "ppo",
        "PPO on CartPole",
        "a written account of an earlier PPO over 8 worker processes and a GPU of unknown model",
    ),
    _speedups(
        "es",
        "evolution strategies on HalfCheetah",
        "a written account of earlier evolution strategies whose workers send seeds in place of noise, on a CPU and a "
        "GPU of unknown models",
    ),
    _solved("dqn", "DQN on Pong", 1),
    _solved("ppo", "PPO on CartPole", 5),
    _solved("es", "evolution strategies on HalfCheetah", 1),
    Entry(
        "learning-cartpole",
        "Learning: CartPole",
        (*_CARTPOLE, "--seeds", "5"),
        (*_CARTPOLE, "--seeds", "1", "--minutes", "1"),
        note=_LEARNING,
        kept_by=("--run-dir", "trainings"),
    ),
    _long_learning("pong", "PPO on Pong from pixels", (*_PONG_PPO, "--seeds", "5"), (*_PONG_PPO, "--seeds", "1")),
    _long_learning("pong-dqn", "DQN on Pong from pixels", (*_PONG_DQN, "--seeds", "5"), (*_PONG_DQN, "--seeds", "1")),
    _long_learning(
        "halfcheetah",
        "evolution strategies on HalfCheetah",
        (*_CHEETAH, "--seeds", "5", "--minutes", "20", "--", "--backend", "envpool"),
        (*_CHEETAH, "--seeds", "1", "--minutes", "1", "--", "--backend", "envpool"),
    ),
    Entry(
        "scaling",
        "Costs of messages",
        ("scaling",),
        ("scaling", "--rounds", "1", "--seconds", "0.1"),
        note="What they mean on more cores is a model, told in [Scaling](scaling.md).",
    ),
)
