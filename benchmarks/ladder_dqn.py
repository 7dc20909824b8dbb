"""The speed ladder of DQN on Pong: single changes on a plain DQN, the same changes on top of each other, stacks.

The last of its notes says what document 1 and document 2 are, whose figures it quotes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import vecenv
from vecenv import VecEnv
from vecenv.agents.config import RunConfig
from vecenv.agents.dqn import DQN, env_settings
from vecenv.agents.dqn_config import DQN_PRESETS
from vecenv.agents.training_run import choose_device
from vecenv.preprocess.config import AtariConfig

from .contestants import Settings
from .ladder import CONTEXT_ONLY, Ladder, LadderTable, Rung, Theirs, needs
from .ladder_training import MakeEnvs, TrainingContestant, TrainingSetup, train_to_mark
from .learner_watch import Stopwatch
from .peers import EnvFactory
from .plain_wrappers import STACK_SIZE, PlainAtariFactory
from .slowed_dqn import leave_gradients_on, wait_for_copies

ENV = "PongNoFrameskip-v4"
SOLVE_AT = 18.0
#: Env steps played before learning begins where only the rate is measured.
RATE_LEARNING_STARTS = 1_000
#: Steps of every environment between two looks at the clock.
RATE_REPORT_ROUNDS = 8
UPDATE_STEPS = 4


def _config(preset: str, *, preprocess: str | None = None, **changes: Any) -> RunConfig:
    """A run with a preset's hyper-parameters; plain DQN plays in one process and computes in float32."""
    settings = dataclasses.replace(DQN_PRESETS[preset], **changes)
    config = RunConfig(
        ENV,
        preprocess=preprocess,
        algorithm="dqn",
        settings=settings,
        solve_at=SOLVE_AT,
        checkpoint_seconds=1e9,
    )
    return dataclasses.replace(config, backend="sync", precision="float32") if preset == "ladder-baseline" else config


_baseline = partial(_config, "ladder-baseline")


def _several(num_envs: int, **more: Any) -> RunConfig:
    """So many environments, an update per step of all of them, on as many times 32 transitions."""
    return _baseline(num_envs=num_envs, minibatch_size=32 * num_envs, steps_per_update=float(num_envs), **more)


def _cumulative(**more: Any) -> RunConfig:
    """Four steps of one environment, then an update on four times as many transitions."""
    return _baseline(minibatch_size=32 * UPDATE_STEPS, steps_per_update=float(UPDATE_STEPS), **more)


def rate_setup(setup: TrainingSetup) -> TrainingSetup:
    """The same training with a short warm-up of the replay, and looks at the clock often enough."""
    settings = dataclasses.replace(
        setup.config.settings,
        learning_starts=RATE_LEARNING_STARTS,
        report_steps=RATE_REPORT_ROUNDS * setup.config.settings.num_envs,
    )
    return dataclasses.replace(setup, config=dataclasses.replace(setup.config, settings=settings))


class WatchedDQN(TrainingContestant):
    """DQN at work, and how much of the time goes to gradient steps.

    Args:
        setup: what to train.
        warm_up_steps: env steps taken before anything is measured.
    """

    def __init__(self, setup: TrainingSetup, *, warm_up_steps: int) -> None:
        super().__init__(setup, warm_up_steps=warm_up_steps)
        self._learning, self._seconds = Stopwatch(), 0.0
        self._learning.attach(cast(DQN, self.run.learner).learning, "update")

    def measure(self, seconds: float) -> float:
        """As of any training."""
        start = time.perf_counter()
        rate = super().measure(seconds)
        self._seconds += time.perf_counter() - start
        return rate

    def figures(self) -> Mapping[str, float]:
        """Share of the wall-clock of all rounds; on CUDA of starting the steps."""
        return {"learning share": self._learning.seconds / self._seconds} if self._seconds else {}


def build_contestant(setup: TrainingSetup) -> WatchedDQN:
    """A training that has begun to learn, ready to be measured."""
    short = rate_setup(setup)
    return WatchedDQN(short, warm_up_steps=RATE_LEARNING_STARTS + short.config.settings.report_steps)


def _rung(
    name: str, changes: str, setup: TrainingSetup | RunConfig, *documents: Theirs, beside: str = "", **more: Any
) -> Rung:
    """A rung; `beside` names what its setup changes beside the settings of the run, to tell it from one without."""
    if isinstance(setup, RunConfig):
        setup = TrainingSetup(setup)
    return Rung(
        name,
        changes,
        build=partial(build_contestant, setup),
        documents=documents,
        solve=partial(train_to_mark, setup),
        settings={**dataclasses.asdict(setup.config), **({"beside_settings": beside} if beside else {})},
        **more,
    )


def _make_envs(env_fn: Callable[[], Any], config: RunConfig) -> VecEnv:
    return vecenv.make_vec(env_fn, backend="sync", **env_settings(config.settings))


def _plain_envs() -> MakeEnvs:
    return partial(_make_envs, PlainAtariFactory(ENV))


def _opencv_envs() -> MakeEnvs:
    return partial(_make_envs, EnvFactory(Settings(ENV, 1, 1)))


def _stack_envs(stack_size: int, config: RunConfig) -> VecEnv:
    return vecenv.make_vec(ENV, preprocess=AtariConfig(stack_size=stack_size), **env_settings(config.settings))


def _one(rate: float | None, text: str = "") -> Theirs:
    return Theirs("document 1", rate, text)


def _two(rate: float | None, text: str = "") -> Theirs:
    return Theirs("document 2", rate, text)


def _single() -> LadderTable:
    """As in document 1: every rung changes the base alone, but for its wrappers, which it tries on two other rungs."""
    one = {2: (335, "48 min to solve"), 3: (398, "36 min to solve")}
    two = {2: 200, 3: 212, 4: 227, 5: 228, 6: 232}
    several = []
    for number in range(2, 7):
        rate, text = one.get(number, (None, "faster, learns worse"))
        theirs = (_one(rate, text), _two(two[number], f"{number} steps per update"))
        changes = f"{number} envs in one process, batch {32 * number}"
        several.append(_rung(f"envs-{number}", changes, _several(number), *theirs))
    leaky = TrainingSetup(_baseline(), change=leave_gradients_on)
    fast = "no no-op start, frame skip 4 without max-pooling, 2 frames stacked"
    rungs = (
        _rung(
            "base",
            "1 env, batch 32, an update per step",
            _baseline(),
            _one(227, "52 min to solve"),
            _two(154, "60-90 min to solve"),
        ),
        _rung(
            "gradients-left-on",
            "torch.no_grad left out while acting and for the targets",
            leaky,
            _one(217, "about 10 steps/s slower than its base"),
            beside="gradients left on",
        ),
        *several,
        _rung(
            "own-process",
            "playing in its own process",
            _baseline(num_actors=1),
            _one(290, "41 % less time to solve"),
        ),
        _rung("fast-envs-3", f"3 envs; {fast}", _several(3, preprocess="fast"), base="envs-3"),
        _rung(
            "fast-own-process",
            f"own process; {fast}",
            _baseline(num_actors=1, preprocess="fast"),
            base="own-process",
        ),
    )
    return LadderTable("single", "single changes on the base; fast wrappers on two of the rungs", rungs)


def _on_top() -> LadderTable:
    """As in document 2: every rung keeps what those before it changed; both begin with wrappers in plain Python.

    On CUDA the rungs before ``async-copies`` wait for every copy.
    """
    stack: dict[str, Any] = {"stack_size": STACK_SIZE}
    plain = partial(TrainingSetup, make_envs=_plain_envs(), change=wait_for_copies)
    waiting = partial(_rung, beside="plain wrappers, waits for copies")
    own_process = plain(_cumulative(num_actors=1, **stack))
    rungs = (
        waiting(
            "plain", "the base, wrappers in plain NumPy", plain(_baseline(**stack)), _two(154, "60-90 min to solve")
        ),
        waiting("steps-4", "4 steps per update, batch 128", plain(_cumulative(**stack)), _two(227)),
        waiting("steps-4-own-process", "playing in its own process", own_process, _two(395)),
        _rung(
            "async-copies",
            "copies to the device while it computes",
            TrainingSetup(_cumulative(num_actors=1, **stack), _plain_envs()),
            _two(406),
            beside="plain wrappers",
            not_applicable=needs(
                lambda: choose_device("auto") == "cuda", "no CUDA, the network reads where the replay is"
            ),
        ),
        _rung(
            "opencv-wrappers",
            "Gymnasium's AtariPreprocessing (OpenCV)",
            TrainingSetup(_cumulative(num_actors=1, **stack), _opencv_envs()),
            _two(484, "20-30 min to solve"),
            beside="OpenCV wrappers",
            not_applicable=needs(lambda: find_spec("cv2"), "OpenCV is not installed (the extra is opencv)"),
        ),
        _rung("native-wrappers", "our wrappers, one fused kernel", _cumulative(num_actors=1)),
        _rung("default", "the defaults of vecenv train dqn on Pong", _config("atari")),
    )
    return LadderTable("cumulative", "every change on top of those before", rungs, cumulative=True)


def _stacks() -> LadderTable:
    """How many frames the default needs to learn; a matter of learning, with no rate of its own."""
    theirs = {1: "3 of 8 runs never converge", 2: "as in its fast wrappers", 4: "as in its base"}
    rungs = []
    for size, text in theirs.items():
        setup = TrainingSetup(_config("atari"), partial(_stack_envs, size))
        rung = _rung(f"stack-{size}", f"the default, {size} frames in an observation", setup, _one(None, text))
        rungs.append(dataclasses.replace(rung, build=None, settings={**rung.settings, "atari_stack_size": size}))
    return LadderTable("stack", "frames in an observation", tuple(rungs))


def make_ladder() -> Ladder:
    """The ladder of DQN, with the packages and devices of this machine."""
    return Ladder(
        key="dqn",
        title=f"DQN on {ENV}",
        unit="agent steps/s",
        mark=f"mean return of the last 100 episodes >= {SOLVE_AT:g}",
        tables=(_single(), _on_top(), _stacks()),
        notes=(
            "rates are those of training: playing, sampling and gradient steps; an agent step is 4 frames of the "
            "emulator",
            f"for the rates learning begins after {RATE_LEARNING_STARTS:,} steps, in a training to the mark after "
            "10,000; all rungs but the default compute in float32",
            "learning share: part of the wall-clock in gradient steps (on CUDA: in starting them); where it is near 1, "
            "as with the base's large network on a few CPU cores, nothing that makes playing faster can help",
            "document 1 and document 2: written accounts of two earlier implementations of this ladder; 1 is the newer "
            f"one, on hardware that is not known here, 2 ran on a GTX 1080 Ti. {CONTEXT_ONLY}",
        ),
        solve_minutes=120.0,
    )
