"""A wrapper through which some envs of a vector env can be asked, told and reset differently from the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym

from vecenv.cores import usable_cores

#: Reset option that holds one options dict (or None) per env.
OPTIONS_BY_ENV = "options_by_env"
#: More processes than this per core cost memory and bring nothing.
_PROCESSES_PER_CORE = 4


class AddressableEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An env that knows its index in the vector env.

    A call of a vector env reaches all its envs; `on_envs` names those that it is meant for, the others do nothing.

    Args:
        env: the environment.
        index: its index in the vector env.
    """

    def __init__(self, env: gym.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self.index = index

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env; ``options`` reach it only where there are any, and only its own of `OPTIONS_BY_ENV`."""
        options = self._own_options(arguments.pop("options", None))
        return self.env.reset(**arguments, options=options) if options else self.env.reset(**arguments)

    def _own_options(self, options: Any) -> Any:
        if options and OPTIONS_BY_ENV in options:
            return options[OPTIONS_BY_ENV][self.index]
        return options

    def on_envs(self, indices: Sequence[int], doing: str, *arguments: Any) -> list[Any]:
        """Carry out one of the methods below, once for every time that this env is named.

        Args:
            indices: the envs that are meant.
            doing: name of the method.
            arguments: its arguments.

        Returns:
            Its results.
        """
        count = sum(index == self.index for index in indices)
        if not count:
            return []
        method: Callable[..., Any] = getattr(self, doing)
        return [method(*arguments) for _ in range(count)]

    def has_attribute(self, name: str) -> bool:
        """Whether the env or one of its wrappers has the attribute."""
        try:
            self.env.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def read_attribute(self, name: str) -> Any:
        """The attribute itself, also where it can be called."""
        return self.env.get_wrapper_attr(name)

    def write_attribute(self, name: str, value: Any) -> None:
        """Set an attribute where it lives; a new one on the outermost wrapper."""
        self.env.set_wrapper_attr(name, value)

    def call_method(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a method of the env or of one of its wrappers."""
        return self.env.get_wrapper_attr(name)(*arguments, **keywords)

    def is_wrapped(self, class_name: str) -> bool:
        """Whether one of the wrappers is of a class, or says that it stands for it.

        Args:
            class_name: module and name. Not the class: its package need not be loaded here.
        """
        return any(class_name in _class_names(env) for env in _layers(self.env))


class AddressableInPlaceEnv(AddressableEnv):
    """`AddressableEnv` around an env that writes its observations where it is told to."""

    def reset_into(self, out: Any, **arguments: Any) -> dict[str, Any]:
        """See `vecenv.atari.AtariEnv.reset_into`; options as in `reset`."""
        options = self._own_options(arguments.pop("options", None))
        infos: dict[str, Any] = self.env.reset_into(out, **arguments, options=options or None)  # type: ignore[attr-defined]
        return infos

    def step_into(self, action: Any, out: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        """See `vecenv.atari.AtariEnv.step_into`."""
        result: tuple[float, bool, bool, dict[str, Any]] = self.env.step_into(action, out)  # type: ignore[attr-defined]
        return result


def make_addressable(env_fn: Callable[[], gym.Env[Any, Any]], index: int) -> AddressableEnv:
    """Build an env that knows its index.

    Args:
        env_fn: constructor of the env.
        index: its index in the vector env.
    """
    env = env_fn()
    # Asked of the class: a wrapper that forwards attributes has methods of its own that must not be passed by.
    return (AddressableInPlaceEnv if hasattr(type(env), "step_into") else AddressableEnv)(env, index)


def addressable_fns(env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> list[Callable[[], AddressableEnv]]:
    """Constructors of the same envs, each of which knows its index."""
    return [functools.partial(make_addressable, env_fn, index) for index, env_fn in enumerate(env_fns)]


def processes_for(num_envs: int) -> int:
    """How many processes stand in for one per env: as many, but no more per core than bring anything."""
    return min(num_envs, _PROCESSES_PER_CORE * usable_cores())


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _class_names(env: gym.Env[Any, Any]) -> set[str]:
    names: set[str] = set(getattr(type(env), "stands_for", ()))
    if isinstance(env, gym.Wrapper):
        names.update(f"{cls.__module__}.{cls.__qualname__}" for cls in type(env).__mro__)
    return names
