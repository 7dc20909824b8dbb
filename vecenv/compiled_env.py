"""What an env of the `compiled` back end is made of, and the registry that `make_vec` finds it in.

A compiled env is three functions on one row of a batch, which Numba compiles together with the loops around them:

    class Walk(NamedTuple):                      # numbers that every function gets
        length: float = 10.0

    def start(state, row, generators, bounds, parameters):
        state[0, row] = uniform(generators, row, bounds[0], bounds[1])

    def advance(state, row, actions, generators, parameters):
        state[0, row] += 1.0 if actions[row] == 1 else -1.0
        return -1.0, abs(state[0, row]) >= parameters.length          # reward, terminated

    def observe(state, row, observations, parameters):
        observations[row, 0] = state[0, row]

    register_compiled_env("me/Walk-v0", CompiledEnv(...))
    envs = vecenv.make_vec("me/Walk-v0", 1024, "compiled")

The arguments must have these names. `advance` is called for running episodes with valid actions only, unless the env
allows more. What is written without branches on the row (`x if c else y` is fine) LLVM turns into vector instructions.
Functions that they call must be compiled with ``numba.njit`` too; Numba does not see edits of them, nor of the three,
in a running process. The first step compiles for some seconds, in every process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gymnasium import spaces

from vecenv.errors import UnknownSetting

#: Names of the arguments, which Numba matches too.
_ARGUMENTS = {
    "start": ("state", "row", "generators", "bounds", "parameters"),
    "advance": ("state", "row", "actions", "generators", "parameters"),
    "observe": ("state", "row", "observations", "parameters"),
    "is_usual": ("state", "row", "parameters"),
    "advance_usual": ("state", "row", "actions", "generators", "parameters"),
}


@dataclass(frozen=True)
class CompiledEnv:
    """An env of the `compiled` back end.

    Attributes:
        observation_space: a one-dimensional Box.
        action_space: a Discrete, or a one-dimensional Box.
        state_size: numbers (float64) that are an env's state.
        parameters: an instance of a NamedTuple class of this env's own, whose fields are numbers.
        start: ``start(state, row, generators, bounds, parameters)`` begins an episode: writes ``state[:, row]``, of
            shape `[state_size, num_envs or more]`, and draws with ``vecenv.pcg64.uniform(generators, row, low, high)``.
        advance: ``advance(state, row, actions, generators, parameters) -> (reward, terminated)`` plays one step;
            ``actions[row]`` for a Discrete (int64), ``actions[row, i]`` for a Box (float64).
        observe: ``observe(state, row, observations, parameters)`` writes ``observations[row, :]``.
        advances_ended: whether `advance` may also be called for episodes that have ended, to no effect: a faster
            NEXT_STEP.
        bounds: floats handed to `start`, what a plain reset uses.
        read_options: gives other bounds for the options of a reset, as many as `bounds`; None: options are ignored.
        max_episode_steps: steps after which an episode is truncated; None: never.
        keywords: name of a keyword of `make_vec` -> name of the parameter that it sets.
        entry_point: what Gymnasium's registry says for the same id, where the id is also Gymnasium's.
        is_usual: ``is_usual(state, row, parameters)`` tells whether `advance_usual` may play the row; None: never.
        advance_usual: as `advance`, with the same results to the last bit where `is_usual`, but faster; played in
            place of it in steps in which all rows are usual.
    """

    observation_space: spaces.Box
    action_space: spaces.Discrete | spaces.Box
    state_size: int
    parameters: Any
    start: Callable[..., None]
    advance: Callable[..., tuple[Any, Any]]
    observe: Callable[..., None]
    advances_ended: bool = False
    bounds: tuple[float, ...] = ()
    read_options: Callable[[Mapping[str, Any]], tuple[float, ...]] | None = None
    max_episode_steps: int | None = None
    keywords: Mapping[str, str] = field(default_factory=dict)
    entry_point: str | None = None
    is_usual: Callable[..., Any] | None = None
    advance_usual: Callable[..., tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        """Refuse what the kernels cannot run, before anything is compiled.

        Raises:
            TypeError, ValueError: naming the field.
        """
        if (self.is_usual is None) != (self.advance_usual is None):
            raise TypeError("is_usual and advance_usual: expected both or none")
        for name, names in _ARGUMENTS.items():
            if getattr(self, name) is None and name in ("is_usual", "advance_usual"):
                continue
            function = getattr(getattr(self, name), "py_func", getattr(self, name))
            if not callable(function) or tuple(inspect.signature(function).parameters) != names:
                raise TypeError(f"{name}: expected a function with the arguments {', '.join(names)}, got {function!r}")
            object.__setattr__(self, name, function)  # the plain function of a compiled one
        if not isinstance(self.observation_space, spaces.Box) or len(self.observation_space.shape) != 1:
            raise TypeError(f"observation_space: expected a one-dimensional Box, got {self.observation_space}")
        one_dimensional = isinstance(self.action_space, spaces.Box) and len(self.action_space.shape) == 1
        if not one_dimensional and not isinstance(self.action_space, spaces.Discrete):
            raise TypeError(f"action_space: expected a Discrete or a one-dimensional Box, got {self.action_space}")
        if not isinstance(self.parameters, tuple) or not getattr(self.parameters, "_fields", ()):
            raise TypeError(f"parameters: expected an instance of a NamedTuple with fields, got {self.parameters!r}")
        if self.state_size < 1:
            raise ValueError(f"state_size: expected at least 1, got {self.state_size}")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps: expected at least 1 or None, got {self.max_episode_steps}")


class Functions(NamedTuple):
    """The functions of an env and the size of its observations, as kernels find them by the class of its parameters."""

    start: Callable[..., None]
    advance: Callable[..., tuple[Any, Any]]
    observe: Callable[..., None]
    observation_size: int
    is_usual: Callable[..., Any] | None = None
    advance_usual: Callable[..., tuple[Any, Any]] | None = None


_ENVS: dict[str, CompiledEnv] = {}
_FUNCTIONS: dict[type, Functions] = {}


def register_compiled_env(env_id: str, env: CompiledEnv) -> None:
    """Make an env known to ``make_vec(env_id, backend="compiled")``, in this process.

    Args:
        env_id: its id; one that is registered already gets the new env.
        env: the env. Its parameters' class must be its own: the functions are found by it.

    Raises:
        ValueError: the class of the parameters belongs to an env with other functions.
        TypeError: `env` is no `CompiledEnv`.

    Examples:
        A walk on a line, until its end is reached:

        >>> import vecenv
        >>> from vecenv.pcg64 import uniform
        >>> class Line(NamedTuple):
        ...     length: float = 10.0
        >>> def start(state, row, generators, bounds, parameters):
        ...     state[0, row] = uniform(generators, row, bounds[0], bounds[1])
        >>> def advance(state, row, actions, generators, parameters):
        ...     state[0, row] += 1.0 if actions[row] == 1 else -1.0
        ...     return -1.0, abs(state[0, row]) >= parameters.length
        >>> def observe(state, row, observations, parameters):
        ...     observations[row, 0] = state[0, row]
        >>> line = CompiledEnv(
        ...     observation_space=spaces.Box(-20.0, 20.0, (1,)),
        ...     action_space=spaces.Discrete(2),
        ...     state_size=1,
        ...     parameters=Line(),
        ...     start=start,
        ...     advance=advance,
        ...     observe=observe,
        ...     bounds=(-1.0, 1.0),
        ... )
        >>> register_compiled_env("docs/Line-v0", line)
        >>> with vecenv.make_vec("docs/Line-v0", 1024, "compiled") as envs:
        ...     envs.observation_space.shape  # the first step compiles
        (1024, 1)
    """
    if not isinstance(env, CompiledEnv):
        raise TypeError(f"register_compiled_env({env_id!r}): expected a CompiledEnv, got {env!r}")
    note_functions(env, f"register_compiled_env({env_id!r})")
    _ENVS[env_id] = env


def note_functions(env: CompiledEnv, asked: str) -> None:
    """Make the functions of an env, registered or not, findable for the compiler.

    Args:
        env: the env.
        asked: the call that asks for it, for the message.

    Raises:
        ValueError: the class of the parameters belongs to an env with other functions.
    """
    size = env.observation_space.shape[0]
    functions = Functions(env.start, env.advance, env.observe, size, env.is_usual, env.advance_usual)
    if _FUNCTIONS.setdefault(type(env.parameters), functions) != functions:
        raise ValueError(
            f"{asked}: {type(env.parameters).__name__} holds the parameters of an env with other functions; give this "
            "env a NamedTuple class of its own"
        )


def functions_of(parameters_class: type) -> Functions:
    """The functions of the env whose parameters have this class."""
    return _FUNCTIONS[parameters_class]


def find_compiled_env(env_id: str) -> CompiledEnv | None:
    """The env of an id, None where none is registered."""
    import vecenv.classic_control  # noqa: F401  registers its own

    return _ENVS.get(env_id)


def compiled_env(env_id: str) -> CompiledEnv:
    """The env of an id.

    Raises:
        UnknownSetting: no such env; the message lists those there are.
    """
    env = find_compiled_env(env_id)
    if env is None:
        raise UnknownSetting(f"env id {env_id!r} has no compiled env; there are: {', '.join(sorted(_ENVS))}")
    return env
