"""What an engine without Python envs does not have: methods, attributes, pictures and states of single envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from vecenv.send_recv import SendRecvVecEnv


class EngineRefusals(SendRecvVecEnv):
    """A vector env that refuses, in one sentence, what needs a Python object for every env.

    Attributes:
        engine: its name in messages.
    """

    engine: str
    _engine_seeds: list[int]

    def _refuse(self, doing: str, why: str = "its envs are no Python objects") -> NoReturn:
        self._check_open(doing)
        raise NotImplementedError(f"backend={self.engine!r} has no {doing}: {why}; use backend='subproc' or 'sync'")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """``np_random_seed``: the seeds of the engine's generators, -1 before the first reset. All else is refused.

        Raises:
            NotImplementedError: any other name.
        """
        if name != "np_random_seed":
            self._refuse("call and get_attr")
        self._check_open("get_attr")
        return tuple(self._engine_seeds)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("call and get_attr")

    def set_attr(self, name: str, values: Any) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("set_attr")

    def render(self) -> tuple[Any, ...] | None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("render", "the engine hands out observations only")

    def get_state(self) -> list[bytes]:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("get_state", "the engine keeps its state to itself")

    def set_state(self, states: Sequence[bytes]) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("set_state", "the engine keeps its state to itself")
