"""An environment and values that can be pickled anywhere, but loaded only in the process that they belong to."""

from __future__ import annotations

import os
import sys

import cloudpickle

from vecenv.testing import CountEnv

# Actors of Ray do not find this folder.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class LoadsOnlyIn:
    """Can be pickled anywhere and loaded only in one process."""

    def __init__(self, pid):
        self.pid = pid

    def __reduce__(self):
        return (_refuse_elsewhere, (self.pid,))


def _refuse_elsewhere(pid):
    if os.getpid() != pid:
        raise ValueError("loaded elsewhere")
    return "loaded"


class SecretiveEnv(CountEnv):
    """Gives, at the second step, an info that only its own process can load."""

    def step(self, action):
        observation, *rest, info = super().step(action)
        if self.uid == 1 and self.time == 2:
            info["secret"] = LoadsOnlyIn(os.getpid())
        return observation, *rest, info

    def secret(self):
        return LoadsOnlyIn(os.getpid()) if self.uid == 2 else 0
