"""An environment that steps once it is let: what the tests of steps that are outstanding share."""

from __future__ import annotations

import os

from waiting import wait_until

from vecenv.toy_envs import CountEnv


class GatedEnv(CountEnv):
    """`CountEnv` whose steps last until a file exists, or fail after a minute."""

    def __init__(self, gate, **arguments):
        super().__init__(**arguments)
        self.gate = gate

    def step(self, action):
        wait_until(lambda: os.path.exists(self.gate), 60.0)
        return super().step(action)
