"""A back end of your own, held against the contract of vector envs.

    python examples/own_backend.py

It steps every environment in a thread of its own, which suits those that mostly wait: for a server, or a device.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from vecenv.testing import check_vec_env


class ThreadVectorEnv(VectorEnv):
    """Steps every environment in a thread of its own."""

    def __init__(self, env_fns, autoreset_mode=AutoresetMode.NEXT_STEP):
        self.envs = [env_fn() for env_fn in env_fns]
        self.num_envs = len(self.envs)
        self.mode = AutoresetMode(autoreset_mode)
        first = self.envs[0]
        self.metadata = {**first.metadata, "autoreset_mode": self.mode}  # a dict of this instance, not of the class
        self.render_mode, self.spec = first.render_mode, None
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rows = [None] * self.num_envs  # the newest observation of each env
        self._done = np.zeros(self.num_envs, bool)
        self._pool = ThreadPoolExecutor(self.num_envs)

    def reset(self, *, seed=None, options=None):
        self._check_open("reset")
        mask = np.ones(self.num_envs, bool)
        if options is not None and "reset_mask" in options:
            mask = self._checked_mask(options["reset_mask"])
            options = {name: value for name, value in options.items() if name != "reset_mask"}  # theirs is left alone
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected {self.num_envs}, got {len(seeds)}")

        def begin(i):
            return deepcopy(self.envs[i].reset(seed=seeds[i], options=deepcopy(options)))

        infos = {}
        chosen = np.flatnonzero(mask).tolist()
        for i, (observation, info) in zip(chosen, self._pool.map(begin, chosen), strict=True):
            self._rows[i] = observation
            infos = self._add_info(infos, info, i)
        self._done[mask] = False
        return self._observations(), infos

    def step(self, actions):
        self._check_open("step")
        if self.mode is AutoresetMode.DISABLED and self._done.any():
            raise ResetNeeded(f"the episodes of {np.flatnonzero(self._done)} have ended; reset them first")
        rewards = np.zeros(self.num_envs)
        ends = np.zeros((2, self.num_envs), bool)
        infos = {}
        each = list(iterate(self.action_space, deepcopy(actions)))
        for i, result in enumerate(self._pool.map(self._advance, range(self.num_envs), each)):
            self._rows[i], rewards[i], ends[0, i], ends[1, i], info = result
            infos = self._add_info(infos, info, i)
        self._done = (ends[0] | ends[1]) & (self.mode is not AutoresetMode.SAME_STEP)
        return self._observations(), rewards, ends[0].copy(), ends[1].copy(), infos

    def _advance(self, i, action):
        """One step of one env, in its thread; what it returns is copied, for it may use its arrays again."""
        env = self.envs[i]
        if self._done[i]:  # under NEXT_STEP the step after an end is the reset
            observation, info = env.reset()
            return deepcopy((observation, 0.0, False, False, info))
        observation, reward, terminated, truncated, info = deepcopy(env.step(action))
        if self.mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            final = {"final_obs": observation, "final_info": info}
            observation, info = deepcopy(env.reset())
            info = {**info, **final}
        return observation, reward, terminated, truncated, info

    def call(self, name, *args, **kwargs):
        self._check_open("call")
        values = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name):
        return self.call(name)

    def set_attr(self, name, values):
        self._check_open("set_attr")
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        for env, value in zip(self.envs, each, strict=True):
            env.set_wrapper_attr(name, value)

    def render(self):
        return self.call("render")

    @property
    def np_random_seed(self):
        return self.get_attr("np_random_seed")

    def close_extras(self, **kwargs):
        self._pool.shutdown()
        for env in self.envs:
            env.close()

    def _observations(self):
        """A batch of the newest observations, in arrays that belong to the caller."""
        arrays = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self._rows, arrays)

    def _checked_mask(self, mask):
        if not isinstance(mask, np.ndarray) or mask.dtype != bool:
            raise TypeError(f"reset_mask: expected a bool array, got {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask: expected {self.num_envs} values, one of them True, got {mask}")
        return mask

    def _check_open(self, doing):
        if self.closed:
            raise ClosedEnvironmentError(f"`{doing}` was called after `close`")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A back end of your own, held against the contract.")
    parser.add_argument("--short", action="store_true", help="one autoreset mode only")
    modes = ["NextStep"] if parser.parse_args().short else list(AutoresetMode)
    held = check_vec_env(ThreadVectorEnv, only=["gymnasium"], autoreset_modes=modes)
    print(f"{len(held)} checks of the contract hold")
