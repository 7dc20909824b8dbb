"""The stages of an agent step of an Atari game, ours and the peers', each as a piece of work of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from vecenv.atari import AtariEnv
from vecenv.atari_emulator import load_emulator, rom_facts
from vecenv.preprocess.area_weights import area_weights
from vecenv.preprocess.config import AtariConfig
from vecenv.preprocess.palette import NOT_MIXED, gray_pairs

from .contestants import close_envs
from .emulator_limit import FRAME_SKIP
from .timing import measure_rate

SIZE = (84, 84)
STACK = 4
PIPELINES = ("vecenv", "gymnasium", "sb3", "opencv")


class Recording:
    """Screens of real play: the last two frames of every agent step.

    Args:
        rom: name of the ROM.
        steps: agent steps.

    Attributes:
        screens: [N, 2, H, W] uint8 palette values, last frame first.
        gray: [N, 2, H, W] uint8, the emulator's gray.
        rgb: [N, 2, H, W, 3] uint8.
        emulator: the emulator after the last step.
        actions: codes of the game's actions.
        palette: name of the game's palette.
    """

    def __init__(self, rom: str, steps: int) -> None:
        facts = rom_facts(rom)
        self.emulator = load_emulator(rom, 0.0, 0)
        self.actions = facts.minimal_actions
        self.palette = facts.palette
        self.screens = np.empty((steps, 2, facts.height, 160), np.uint8)
        self.gray = np.empty_like(self.screens)
        self.rgb = np.empty((*self.screens.shape, 3), np.uint8)
        self.emulator.reset_game()
        choices = np.random.default_rng(0).integers(len(self.actions), size=steps)
        for step, choice in enumerate(choices):
            if self.emulator.game_over():
                self.emulator.reset_game()
            for remaining in range(FRAME_SKIP - 1, -1, -1):
                self.emulator.act(self.actions[choice])
                if remaining < 2:
                    self.screens[step, remaining] = self.emulator.getScreen()
                    self.gray[step, remaining] = self.emulator.getScreenGrayscale()
                    self.rgb[step, remaining] = self.emulator.getScreenRGB()


@dataclass
class Stage:
    """A piece of an agent step that can be timed by itself.

    Attributes:
        name: pipeline and stage, such as ``"gymnasium: resize"``.
        work: does step `index` of a recording.
        steps: length of that recording.
        close: lets go of what the work needs.
    """

    name: str
    work: Callable[[int], object]
    steps: int
    close: Callable[[], object] = lambda: None
    _next: int = field(default=0, repr=False)

    def measure(self, seconds: float) -> float:
        """Work for about `seconds` seconds; returns agent steps per second."""
        return measure_rate(self._some_steps, seconds)

    def _some_steps(self) -> int:
        begin, self._next = self._next, (self._next + 32) % self.steps
        for index in range(begin, begin + 32):
            self.work(index % self.steps)
        return 32


def emulator_stage(recording: Recording) -> Stage:
    """The emulator alone: `FRAME_SKIP` frames per step."""
    emulator = recording.emulator
    choices = np.random.default_rng(1).integers(len(recording.actions), size=len(recording.screens))
    codes = [recording.actions[choice] for choice in choices]

    def play(index: int) -> None:
        for _ in range(FRAME_SKIP):
            emulator.act(codes[index])
        if emulator.game_over():
            emulator.reset_game()

    return Stage("emulator", play, len(codes))


def our_stages(recording: Recording) -> dict[str, Stage]:
    """Kernels of growing scope, whose differences are the stages: ``pool``, ``shrink``, ``observe``.

    They compute the rows that changed since the frame before; ``observe, whole frame`` computes all of them.
    """
    from vecenv.preprocess import kernels

    count, _, height, width = recording.screens.shape
    weights = area_weights((height, width), SIZE)
    pairs = gray_pairs(recording.palette)
    out = np.empty((STACK, *SIZE), np.uint8)
    buffers = np.empty((2, height, width), np.uint8)

    def kept() -> tuple[tuple[Any, Any], Any]:
        memory = np.zeros((3, height, width), np.uint8), np.zeros(height, np.uint8)
        return memory, np.zeros((STACK + 1, *SIZE), np.uint8)

    changed = np.empty(height, np.uint8)
    pool_memory, _ = kept()
    shrink_memory, shrink_frames = kept()
    memory, frames = kept()
    whole_memory, whole_frames = kept()
    screens, read = recording.screens, recording.emulator.getScreen

    def copy(index: int) -> None:
        read(buffers[0])
        read(buffers[1])

    def pool(index: int) -> None:
        kernels.pool_changed_rows(screens[index], *pool_memory, pairs, NOT_MIXED, False, changed)

    def shrink(index: int) -> None:
        kernels.shrink_screens(
            screens[index], *shrink_memory, pairs, NOT_MIXED, weights, shrink_frames[STACK], index == 0
        )

    def observe(index: int) -> None:
        kernels.observe_screens(
            screens[index], *memory, pairs, NOT_MIXED, *weights, frames, index % STACK, index == 0, out
        )

    def observe_whole(index: int) -> None:
        kernels.observe_screens(
            screens[index], *whole_memory, pairs, NOT_MIXED, *weights, whole_frames, index % STACK, True, out
        )

    def reward(index: int) -> float:
        total = index % 3 - 1
        return float((total > 0) - (total < 0))

    works = {"screen copy": copy, "pool": pool, "shrink": shrink, "observe": observe, "reward": reward}
    works["observe, whole frame"] = observe_whole
    return {name: Stage(f"vecenv: {name}", work, count) for name, work in works.items()}


def peer_stages(recording: Recording, pipeline: str) -> dict[str, Stage]:
    """What Gymnasium's or SB3's wrappers, or plain OpenCV calls, do in each stage."""
    import cv2

    cv2.setNumThreads(1)
    count = len(recording.screens)
    emulator, gray, rgb = recording.emulator, recording.gray, recording.rgb
    gray_buffer, frame = np.empty_like(gray[0, 0]), np.zeros(SIZE, np.uint8)
    pooled_gray = gray.max(axis=1)
    pooled = np.empty_like(gray_buffer)
    stack = np.zeros((STACK, *SIZE), np.uint8)
    last_stack = np.zeros((1, *SIZE, STACK), np.uint8)

    def copy(index: int) -> None:
        if pipeline == "gymnasium":
            emulator.getScreenGrayscale(gray_buffer)
            emulator.getScreenGrayscale(gray_buffer)
            return
        # SB3's environment returns every frame.
        for _ in range(FRAME_SKIP if pipeline == "sb3" else 2):
            emulator.getScreenRGB()

    def gray_and_max(index: int) -> None:
        if pipeline == "gymnasium":
            np.maximum(gray[index, 0], gray[index, 1], out=pooled)
        elif pipeline == "sb3":
            cv2.cvtColor(rgb[index].max(axis=0), cv2.COLOR_RGB2GRAY)
        else:
            cv2.max(cv2.cvtColor(rgb[index, 0], cv2.COLOR_RGB2GRAY), cv2.cvtColor(rgb[index, 1], cv2.COLOR_RGB2GRAY))

    def resize(index: int) -> None:
        cv2.resize(pooled_gray[index], SIZE[::-1], interpolation=cv2.INTER_AREA)

    def store(index: int) -> object:
        if pipeline == "gymnasium":
            return np.stack([frame, frame, frame, frame], out=stack).copy()
        if pipeline == "sb3":
            rolled = np.roll(last_stack, shift=-1, axis=-1)
            rolled[..., -1:] = frame[..., None]
            return rolled
        stack[:-1] = stack[1:]
        stack[-1] = frame
        return stack.copy()

    def reward(index: int) -> object:
        return np.sign(float(index % 3 - 1))

    works = {"screen copy": copy, "gray + max": gray_and_max, "resize": resize, "stack": store, "reward": reward}
    return {name: Stage(f"{pipeline}: {name}", work, count) for name, work in works.items()}


def check_stages(recording: Recording) -> None:
    """Compare every recorded frame of our kernels with OpenCV's before anything is timed.

    Raises:
        RuntimeError: a pixel differs.
    """
    import cv2

    from vecenv.preprocess import kernels

    _, _, height, width = recording.screens.shape
    weights = area_weights((height, width), SIZE)
    memory, alike = np.zeros((3, height, width), np.uint8), np.zeros(height, np.uint8)
    frame = np.zeros(SIZE, np.uint8)
    pairs = gray_pairs(recording.palette)
    for index, screens in enumerate(recording.screens):
        kernels.shrink_screens(screens, memory, alike, pairs, NOT_MIXED, weights, frame, index == 0)
        expected = cv2.resize(recording.gray[index].max(axis=0), SIZE[::-1], interpolation=cv2.INTER_AREA)
        if not np.array_equal(frame, expected):
            raise RuntimeError(f"kernels and OpenCV differ at step {index}; nothing was timed")


def whole_env(pipeline: str, rom: str) -> gymnasium.Env[Any, Any]:
    """The whole pipeline as one environment.

    Args:
        pipeline: ``"vecenv"``, ``"gymnasium"`` or ``"sb3"``.
        rom: name of the ROM.
    """
    if pipeline == "vecenv":
        return AtariEnv(rom, AtariConfig())
    import ale_py
    import cv2

    cv2.setNumThreads(1)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    game: gymnasium.Env[Any, Any] = ale_py.AtariEnv(rom, frameskip=1, repeat_action_probability=0.0)
    if pipeline == "sb3":
        from stable_baselines3.common.atari_wrappers import AtariWrapper

        return AtariWrapper(game, terminal_on_life_loss=False)
    game = gymnasium.wrappers.AtariPreprocessing(game, frame_skip=FRAME_SKIP, screen_size=SIZE[0])
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.ClipReward(game, -1.0, 1.0), STACK)


def step_stage(pipeline: str, env: gymnasium.Env[Any, Any]) -> Stage:
    """Whole steps of one environment, resets included."""
    env.reset(seed=0)
    choices = np.random.default_rng(2).integers(int(env.action_space.n), size=512)  # type: ignore[attr-defined]
    actions: list[int] = choices.tolist()

    def step(index: int) -> None:
        _, _, terminated, truncated, _ = env.step(actions[index])
        if terminated or truncated:
            env.reset()

    return Stage(f"{pipeline}: step", step, len(actions), env.close)


def worker_stage(pipeline: str, rom: str, env_id: str) -> Stage:
    """Whole steps of one environment in a worker process, observations and all brought over."""
    envs: Any
    if pipeline == "vecenv":
        import vecenv

        envs = vecenv.make_vec(env_id, 1, backend="subproc", num_workers=1, preprocess=AtariConfig())
        envs.reset(seed=0)
    elif pipeline == "gymnasium":
        envs = gymnasium.vector.AsyncVectorEnv([_EnvFactory(pipeline, rom)])
        envs.reset(seed=0)
    else:
        from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

        envs = VecFrameStack(SubprocVecEnv([_EnvFactory(pipeline, rom)]), STACK)
        envs.reset()
    num_actions = len(rom_facts(rom).minimal_actions)
    actions: list[npt.NDArray[np.int64]] = list(np.random.default_rng(3).integers(num_actions, size=(512, 1)))
    close = functools.partial(close_envs, envs)
    return Stage(f"{pipeline}: in a worker", lambda index: envs.step(actions[index]), len(actions), close)


class _EnvFactory:
    """Builds `whole_env` in another process."""

    def __init__(self, pipeline: str, rom: str) -> None:
        self._arguments = (pipeline, rom)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return whole_env(*self._arguments)
