"""Records one episode as a clip."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vecenv
from vecenv.errors import EnvError, UnknownSetting
from vecenv.writable import check_writable

from .config import RunConfig
from .inference import BatchedPolicy
from .playing import EpisodePlayer

DEFAULT_FPS = 30.0
"""Of environments that do not say theirs."""


def check_clip_path(path: Path) -> None:
    """Refuse a clip that cannot be written, before anything is played.

    Raises:
        UnknownSetting: another ending than .gif or .mp4, no such folder, no permission, or no encoder for mp4.
    """
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise UnknownSetting(f"--video must end in .gif or .mp4, got {path}")
    if not path.parent.is_dir():
        raise UnknownSetting(f"--video: there is no folder {path.parent}")
    check_writable(path, "--video")
    if path.suffix.lower() == ".mp4" and not any(map(importlib.util.find_spec, ("imageio_ffmpeg", "av"))):
        raise UnknownSetting("--video: mp4 needs an encoder (pip install imageio-ffmpeg); .gif needs none")


@contextlib.contextmanager
def no_screen() -> Iterator[None]:
    """Frames are drawn in memory while this lasts.

    SDL, which draws classic control, would still look for a screen, and complain on stderr where there is none. A
    driver that the user has named is left alone.
    """
    if "SDL_VIDEODRIVER" in os.environ:
        yield
        return
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        os.environ.pop("SDL_VIDEODRIVER", None)


def make_rendered_envs(run: RunConfig) -> vecenv.VecEnv:
    """One environment of a run that renders frames.

    It is drawn in :func:`no_screen`.

    Raises:
        UnknownSetting: it has no pictures.
    """
    try:
        return vecenv.make_vec(run.env, 1, "sync", preprocess=run.preprocess, statistics=True, render_mode="rgb_array")
    except (TypeError, ValueError, EnvError) as error:
        raise UnknownSetting(f"--video: {run.env} cannot be rendered ({str(error).splitlines()[0]})") from error


def record_clip(envs: vecenv.VecEnv, policy: BatchedPolicy, path: Path, seed: int, most_frames: int) -> int:
    """Play one episode, at most ``most_frames`` steps of it, into ``path``.

    Frames go to the file one by one, so a long clip takes no memory.

    Args:
        envs: one environment, of :func:`make_rendered_envs`.
        policy: acts.
        path: ends in .gif or .mp4; checked by :func:`check_clip_path`.
        seed: of the environment.
        most_frames: at least 1.

    Returns:
        Frames written.

    Raises:
        UnknownSetting: the environment gives no frames.
    """
    import imageio.v2 as imageio  # wanted for clips only

    fps = float(envs.metadata.get("render_fps") or DEFAULT_FPS)
    is_gif = path.suffix.lower() == ".gif"
    options: dict[str, Any] = {"duration": 1000.0 / fps, "loop": 0} if is_gif else {"fps": fps, "macro_block_size": 2}
    player = EpisodePlayer(envs, policy, seed)
    frame, count = _frame_of(envs), 0  # what cannot be rendered leaves no file
    writer: Any
    with imageio.get_writer(path, mode="I", **options) as writer:
        while True:
            writer.append_data(frame)
            count += 1
            if player.step() or count >= most_frames:
                return count
            frame = _frame_of(envs)


def _frame_of(envs: vecenv.VecEnv) -> NDArray[np.uint8]:
    try:
        frames = envs.render()
    except EnvError as error:
        reason = error.failures[0].message.splitlines()[0]
        raise UnknownSetting(f"--video: the environment cannot be rendered ({reason})") from error
    if not frames or not isinstance(frames[0], np.ndarray):
        raise UnknownSetting("--video: the environment gives no pictures in render mode rgb_array")
    frame: NDArray[np.uint8] = frames[0]
    return frame
