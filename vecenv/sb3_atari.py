"""Atari games as Stable-Baselines3's `make_atari_env` builds them, on this package's own pipeline.

The observations, rewards and flags are those of the preset ``"sb3"`` without its stack, which SB3 makes itself.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vecenv.atari import AtariEnv
from vecenv.preprocess.config import PRESETS, AtariConfig
from vecenv.registration import AtariGame, find_game
from vecenv.sb3_monitor import MONITOR, EpisodeFile

_WRAPPERS = "stable_baselines3.common.atari_wrappers."
#: Settings of ale_py's constructor that have the same name and meaning here.
_SAME_SETTINGS = ("repeat_action_probability", "full_action_space", "mode", "difficulty")
#: Settings of SB3's `AtariWrapper` and their defaults.
WRAPPER_DEFAULTS: dict[str, Any] = {
    "noop_max": 30,
    "frame_skip": 4,
    "screen_size": 84,
    "terminal_on_life_loss": True,
    "clip_reward": True,
    "action_repeat_probability": 0.0,
}


class MonitoredAtariEnv(AtariEnv):
    """`AtariEnv` that reports whole games as SB3's Monitor below its `AtariWrapper` does.

    ``info["episode"]`` comes with the step that ends a game: unclipped rewards, and frames (not agent steps), both
    counted from the start of the game.
    """

    stands_for = (MONITOR, f"{_WRAPPERS}AtariWrapper")

    def __init__(self, rom: str, config: AtariConfig | None = None, render_mode: str | None = None) -> None:
        super().__init__(rom, config, render_mode)
        self.t_start = time.time()
        self._total = 0.0
        self._total_is_over = True
        self._last_frame = -1
        self._file: EpisodeFile | None = None

    def write_episodes(self, path: str, env_id: str, overwrite: bool, begun: float = math.inf) -> None:
        """Also write a line per game into a file.

        Args:
            path: of the file, without its ending.
            env_id: for its first line.
            overwrite: whether a file of that name is begun anew.
            begun: see `EpisodeFile`.
        """
        header = {"t_start": self.t_start, "env_id": env_id}
        self._file = EpisodeFile(path, header, (), overwrite, begun)
        self.t_start = self._file.t_start

    def reset_into(
        self, out: npt.NDArray[np.uint8], *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """See `AtariEnv.reset_into`."""
        infos = super().reset_into(out, seed=seed, options=options)
        begun = seed is not None or self._total_is_over or infos["episode_frame_number"] < self._last_frame
        self._total = self._game.start_rewards + (0.0 if begun else self._total)
        self._last_frame = infos["episode_frame_number"]
        self._total_is_over = False
        if self._game.presses_fire:
            return {}  # FireResetEnv tells nothing, and NoopResetEnv what the last of its frames told
        if self.config.noop_max:
            infos.pop("seeds", None)
        return infos

    def step_into(self, action: Any, out: npt.NDArray[np.uint8]) -> tuple[float, bool, bool, dict[str, Any]]:
        """See `AtariEnv.step_into`."""
        reward, terminated, truncated, infos = super().step_into(action, out)
        self._total += self.unclipped_reward
        self._last_frame = infos["episode_frame_number"]
        if self.game_over and not self._total_is_over:
            self._total_is_over = True
            seconds = round(time.time() - self.t_start, 6)
            infos["episode"] = {"r": round(self._total, 6), "l": self._last_frame, "t": seconds}
            if self._file is not None:
                self._file.write(infos["episode"])
        return reward, terminated, truncated, infos

    def __getstate__(self) -> dict[str, Any]:
        if self._file is not None:  # two envs would write into it, or none
            raise TypeError("it writes its episodes into a file, which stays where it is")
        counted = (self.t_start, self._total, self._total_is_over, self._last_frame)
        return {**super().__getstate__(), "counted": counted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "counted" in state:  # earlier versions did not save it
            self.t_start, self._total, self._total_is_over, self._last_frame = state["counted"]

    def close(self) -> None:
        """See `AtariEnv.close`."""
        super().close()
        if self._file is not None:
            self._file.close()


@dataclasses.dataclass(frozen=True)
class MonitoredAtari:
    """Constructor of one game; made by `find_pipeline`.

    Attributes:
        env_id: the id as the user gave it.
        rom: name of the ROM.
        config: the settings.
        render_mode: None or ``"rgb_array"``.
        action_seed: seeds the env's action space; None: it stays as it is.
        monitor_path: of the CSV file, without its ending; None: no file.
        overwrite: whether a file of that name is begun anew.
        begun: when it was made, in seconds since the epoch; a game that is built again goes on with its file.
    """

    env_id: str
    rom: str
    config: AtariConfig
    render_mode: str | None = "rgb_array"
    action_seed: int | None = None
    monitor_path: str | None = None
    overwrite: bool = True
    begun: float = dataclasses.field(default_factory=time.time)

    def __call__(self) -> MonitoredAtariEnv:
        """Build it."""
        env = MonitoredAtariEnv(self.rom, self.config, self.render_mode)
        if self.action_seed is not None:
            env.action_space.seed(self.action_seed)
        if self.monitor_path is not None:
            env.write_episodes(self.monitor_path, self.env_id, self.overwrite, self.begun)
        return env


def find_pipeline(
    env_id: Any, env_kwargs: Mapping[str, Any], wrapper_kwargs: Mapping[str, Any], monitor_kwargs: Mapping[str, Any]
) -> MonitoredAtari | None:
    """The game on this package's pipeline, where that gives the same bits as the env under SB3's wrappers.

    Args:
        env_id: as given to `make_atari_env`.
        env_kwargs: for the env's constructor.
        wrapper_kwargs: for SB3's `AtariWrapper`, checked.
        monitor_kwargs: for SB3's `Monitor`.

    Returns:
        None where the pipeline cannot do the same: an id that skips frames itself, a picture that grows, infos or
        reset arguments for the monitor, settings that only ale_py has.
    """
    game = find_game(env_id) if isinstance(env_id, str) else None
    own = {name: value for name, value in env_kwargs.items() if name not in ("render_mode", "frameskip")}
    skips = env_kwargs.get("frameskip", 4 if str(env_id).startswith("ALE/") else 1)
    render_mode = env_kwargs.get("render_mode", "rgb_array")
    if game is None or skips != 1 or render_mode not in (None, "rgb_array"):
        return None
    if set(own) - set(_SAME_SETTINGS) or set(monitor_kwargs) - {"override_existing"}:
        return None
    config = _config_of(game, own, {**WRAPPER_DEFAULTS, **wrapper_kwargs})
    if config is None:
        return None
    return MonitoredAtari(
        env_id, game.rom, config, render_mode, overwrite=bool(monitor_kwargs.get("override_existing", True))
    )


def _config_of(game: AtariGame, own: dict[str, Any], wrapper: Mapping[str, Any]) -> AtariConfig | None:
    in_emulator = own.pop("repeat_action_probability", game.repeat_action_probability)
    in_wrapper = wrapper["action_repeat_probability"]
    if in_emulator and in_wrapper:
        return None
    episodic = bool(wrapper["terminal_on_life_loss"])
    try:
        return dataclasses.replace(
            PRESETS["sb3"],
            noop_max=wrapper["noop_max"],
            frame_skip=wrapper["frame_skip"],
            max_pool=wrapper["frame_skip"] > 1,
            screen_size=(wrapper["screen_size"], wrapper["screen_size"]),
            episodic_life=episodic,
            next_life=episodic,
            clip_reward=bool(wrapper["clip_reward"]),
            stack_size=1,
            repeat_action_probability=in_emulator or in_wrapper,
            sticky_actions="emulator" if in_emulator else "wrapper",
            **own,
        )
    except (TypeError, ValueError):  # not available here; SB3's own wrapper judges the value
        return None
