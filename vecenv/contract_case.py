"""What checks of the contract are made of: their registry, the case they run in, and expectations that explain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv.comparison import assert_same
from vecenv.toy_envs import CountEnv

EnvFn = Callable[[], gym.Env[Any, Any]]
MakeVecEnv = Callable[..., VectorEnv[Any, Any, Any]]

#: Every check by its name; filled where the modules of checks are imported.
CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """One sentence of the contract and the function that tries it.

    Attributes:
        name: of the function.
        sentence: what holds, the first line of the function's docstring.
        function: raises where it does not hold.
        group: ``"gymnasium"`` or ``"vecenv"``.
        modes: autoreset modes that it is about; empty: all.
        any_env: whether it works with any env rather than toy environments only.
    """

    name: str
    sentence: str
    function: Callable[[Case], None]
    group: str
    modes: tuple[AutoresetMode, ...]
    any_env: bool


def check(
    *modes: AutoresetMode, group: str = "gymnasium", any_env: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a function as a check; arguments as in `Check`."""

    def register(function: Callable[[Case], None]) -> Callable[[Case], None]:
        sentence = (function.__doc__ or "").strip().splitlines()[0]
        CHECKS[function.__name__] = Check(function.__name__, sentence, function, group, modes, any_env)
        return function

    return register


@dataclass
class Case:
    """Where a check runs: builds vector envs and closes them.

    Attributes:
        make: the back end's constructor.
        mode: autoreset mode of what is built.
        env_id: id of the envs of `any_envs`; None: `CountEnv`.
    """

    make: MakeVecEnv
    mode: AutoresetMode
    env_id: str | None = None
    _built: list[VectorEnv[Any, Any, Any]] = field(default_factory=list)

    def build(self, env_fns: Sequence[EnvFn], **settings: Any) -> Any:
        """A vector env over these envs, in the mode of the case unless told otherwise."""
        settings.setdefault("autoreset_mode", self.mode)
        envs = self.make(env_fns, **settings)
        self._built.append(envs)
        return envs

    def any_envs(self, num_envs: int = 3, **settings: Any) -> Any:
        """A vector env over whatever env is at hand."""
        if self.env_id is None:
            return self.counting(*[5] * num_envs, **settings)
        return self.build([functools.partial(gym.make, self.env_id)] * num_envs, **settings)

    def counting(self, *lengths: int, toys: dict[str, Any] | None = None, **settings: Any) -> Any:
        """A vector env over one `CountEnv` per length, with uids from 0; `toys` are more arguments for them."""
        fns = [functools.partial(CountEnv, uid, length, **(toys or {})) for uid, length in enumerate(lengths)]
        return self.build(fns, **settings)

    def close(self) -> None:
        """Close all that was built; a second close of the same one must do nothing."""
        for envs in self._built:
            envs.close()


def expect(condition: Any, message: str) -> None:
    """Raise with a message unless a condition holds.

    Raises:
        AssertionError: it does not.
    """
    if not condition:
        raise AssertionError(message)


def expect_equal(got: Any, wanted: Any, what: str) -> None:
    """Expect equal values; lists stand for arrays of any dtype, arrays and nests are compared to the last dtype.

    Raises:
        AssertionError: they differ.
    """
    if isinstance(wanted, list):
        array = np.asarray(wanted)
        expect(isinstance(got, np.ndarray), f"{what}: expected an array, got {type(got).__name__}")
        expect(
            array.shape == np.shape(got) and np.array_equal(array, got),
            f"{what}: expected {array.tolist()}, got {np.asarray(got).tolist()}",
        )
    else:
        assert_same(got, wanted, what)


def expect_raises(
    kinds: type[BaseException] | tuple[type[BaseException], ...],
    what: str,
    call: Callable[..., Any],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Expect that a call raises one of some classes, and give what it raised.

    Raises:
        AssertionError: it raised nothing or something else.
    """
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    try:
        result = call(*arguments, **keywords)
    except kinds as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what}: expected {names}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: expected {names}, but it returned {result!r}")


def sample_actions(envs: Any) -> Any:
    """A batch of actions of the env's batched space."""
    return envs.action_space.sample()
