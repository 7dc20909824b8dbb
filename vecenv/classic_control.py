"""Gymnasium's classic control envs as functions on one row of a batch, for the `compiled` back end.

Equations of motion and constants are those of `gymnasium.envs.classic_control` (CartPole: Barto, Sutton and Anderson
1983; mountain car: Moore 1990; Acrobot: Sutton 1996 with the equations of Sutton and Barto's book). For the same state
and action the results differ from Gymnasium's by less than 1e-6; start states are equal to the last bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numba import njit

from vecenv.classic_control_acrobot import register_acrobot
from vecenv.classic_control_options import largest_angle_and_speed, low_and_high
from vecenv.compiled_env import CompiledEnv, register_compiled_env
from vecenv.pcg64 import uniform
from vecenv.sine_cosine import sine_cosine, sine_cosine_near_zero

_MODULE = "gymnasium.envs.classic_control"


# -- CartPole ---------------------------------------------------------------------------------------------------------


class CartPoleParameters(NamedTuple):
    """SI units; `length` is half the pole's."""

    gravity: float = 9.8
    masscart: float = 1.0
    masspole: float = 0.1
    length: float = 0.5
    force_mag: float = 10.0
    tau: float = 0.02
    theta_threshold_radians: float = 12 * 2 * math.pi / 360
    x_threshold: float = 2.4
    sutton_barto_reward: bool = False


def _start_cart_pole(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> None:
    # drawn first, written afterwards: so the generator stays in registers
    x, x_dot = uniform(generators, row, bounds[0], bounds[1]), uniform(generators, row, bounds[0], bounds[1])
    theta, theta_dot = uniform(generators, row, bounds[0], bounds[1]), uniform(generators, row, bounds[0], bounds[1])
    state[0, row], state[1, row], state[2, row], state[3, row] = x, x_dot, theta, theta_dot


@njit(forceinline=True, error_model="numpy")
def _move_cart_pole(state: Any, row: Any, actions: Any, parameters: Any, sine: Any, cosine: Any) -> Any:
    """One step, given sine and cosine of the pole's angle."""
    per_mass = 1.0 / (parameters.masspole + parameters.masscart)  # the same for all rows: one division in all
    pole_moment = parameters.masspole * parameters.length
    x, x_dot, theta, theta_dot = state[0, row], state[1, row], state[2, row], state[3, row]
    force = parameters.force_mag if actions[row] == 1 else -parameters.force_mag
    pushed = (force + pole_moment * theta_dot * theta_dot * sine) * per_mass
    inertia = parameters.length * (4.0 / 3.0 - parameters.masspole * cosine * cosine * per_mass)
    theta_acceleration = (parameters.gravity * sine - cosine * pushed) / inertia
    acceleration = pushed - pole_moment * theta_acceleration * cosine * per_mass
    x += parameters.tau * x_dot
    theta += parameters.tau * theta_dot
    state[0, row] = x
    state[1, row] = x_dot + parameters.tau * acceleration
    state[2, row] = theta
    state[3, row] = theta_dot + parameters.tau * theta_acceleration
    terminated = (abs(x) > parameters.x_threshold) | (abs(theta) > parameters.theta_threshold_radians)
    plain = 0.0 if parameters.sutton_barto_reward else 1.0
    fallen = -1.0 if parameters.sutton_barto_reward else 1.0
    return fallen if terminated else plain, terminated


def _advance_cart_pole(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    sine, cosine = sine_cosine(state[2, row])
    return _move_cart_pole(state, row, actions, parameters, sine, cosine)


def _is_upright(state: Any, row: Any, parameters: Any) -> Any:
    """As every pole is that has not fallen long ago; only states that are set can be others.

    0.78 is a little less than pi / 4, the limit of `sine_cosine_near_zero`.
    """
    return abs(state[2, row]) < 0.78


def _advance_upright(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> Any:
    sine, cosine = sine_cosine_near_zero(state[2, row])
    return _move_cart_pole(state, row, actions, parameters, sine, cosine)


def _observe_four(state: Any, row: Any, observations: Any, parameters: Any) -> None:
    observations[row, 0] = state[0, row]
    observations[row, 1] = state[1, row]
    observations[row, 2] = state[2, row]
    observations[row, 3] = state[3, row]


def _register_cart_pole() -> None:
    parameters = CartPoleParameters()
    high = np.array([parameters.x_threshold * 2, np.inf, parameters.theta_threshold_radians * 2, np.inf], np.float32)
    for env_id, limit in (("CartPole-v0", 200), ("CartPole-v1", 500)):
        env = CompiledEnv(
            observation_space=spaces.Box(-high, high, dtype=np.float32),
            action_space=spaces.Discrete(2),
            state_size=4,
            parameters=parameters,
            start=_start_cart_pole,
            advance=_advance_cart_pole,
            is_usual=_is_upright,
            advance_usual=_advance_upright,
            observe=_observe_four,
            advances_ended=True,
            bounds=(-0.05, 0.05),
            read_options=low_and_high(-0.05, 0.05),
            max_episode_steps=limit,
            keywords={"sutton_barto_reward": "sutton_barto_reward"},
            entry_point=f"{_MODULE}.cartpole:CartPoleEnv",
        )
        register_compiled_env(env_id, env)


# -- the mountain cars ------------------------------------------------------------------------------------------------


class MountainCarParameters(NamedTuple):
    """Lengths and times in the units of the track."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.5
    force: float = 0.001
    gravity: float = 0.0025
    goal_velocity: float = 0.0


class ContinuousMountainCarParameters(NamedTuple):
    """Lengths and times in the units of the track."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.45
    power: float = 0.0015
    gravity: float = 0.0025
    goal_velocity: float = 0.0


def _start_mountain_car(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> None:
    state[0, row] = uniform(generators, row, bounds[0], bounds[1])
    state[1, row] = 0.0


@njit(forceinline=True)
def _between(value: Any, low: Any, high: Any) -> Any:
    value = low if value < low else value
    return high if value > high else value


def _advance_mountain_car(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> tuple[Any, Any]:
    position, velocity = state[0, row], state[1, row]
    _, cosine = sine_cosine(3.0 * position)
    velocity += (actions[row] - 1) * parameters.force - cosine * parameters.gravity
    velocity = _between(velocity, -parameters.max_speed, parameters.max_speed)
    position = _between(position + velocity, parameters.min_position, parameters.max_position)
    stopped = (position == parameters.min_position) & (velocity < 0.0)
    velocity = 0.0 if stopped else velocity
    state[0, row] = position
    state[1, row] = velocity
    return -1.0, (position >= parameters.goal_position) & (velocity >= parameters.goal_velocity)


def _advance_continuous_mountain_car(
    state: Any, row: Any, actions: Any, generators: Any, parameters: Any
) -> tuple[Any, Any]:
    """The env keeps its state in float32, and compares in float32: so do we."""
    position, velocity = state[0, row], state[1, row]
    action = actions[row, 0]
    _, cosine = sine_cosine(3.0 * position)
    pull = np.float32(_between(action, -1.0, 1.0) * parameters.power) - np.float32(parameters.gravity * cosine)
    fastest = np.float64(np.float32(parameters.max_speed))
    lowest, highest = np.float32(parameters.min_position), np.float32(parameters.max_position)
    velocity = _between(np.float64(np.float32(velocity + np.float32(pull))), -fastest, fastest)
    position = _between(np.float64(np.float32(position + velocity)), np.float64(lowest), np.float64(highest))
    stopped = (position == lowest) & (velocity < 0.0)
    velocity = 0.0 if stopped else velocity
    state[0, row] = position
    state[1, row] = velocity
    terminated = (position >= np.float32(parameters.goal_position)) & (velocity >= parameters.goal_velocity)
    return (100.0 if terminated else 0.0) - action * action * 0.1, terminated


def _observe_two(state: Any, row: Any, observations: Any, parameters: Any) -> None:
    observations[row, 0] = state[0, row]
    observations[row, 1] = state[1, row]


def _register_mountain_cars() -> None:
    high = np.array([MountainCarParameters().max_position, MountainCarParameters().max_speed], np.float32)
    low = np.array([MountainCarParameters().min_position, -MountainCarParameters().max_speed], np.float32)
    shared: dict[str, Any] = {
        "observation_space": spaces.Box(low, high, dtype=np.float32),
        "state_size": 2,
        "start": _start_mountain_car,
        "observe": _observe_two,
        "advances_ended": True,
        "bounds": (-0.6, -0.4),
        "read_options": low_and_high(-0.6, -0.4),
        "keywords": {"goal_velocity": "goal_velocity"},
    }
    discrete = CompiledEnv(
        action_space=spaces.Discrete(3),
        parameters=MountainCarParameters(),
        advance=_advance_mountain_car,
        max_episode_steps=200,
        entry_point=f"{_MODULE}.mountain_car:MountainCarEnv",
        **shared,
    )
    continuous = CompiledEnv(
        action_space=spaces.Box(-1.0, 1.0, (1,), np.float32),
        parameters=ContinuousMountainCarParameters(),
        advance=_advance_continuous_mountain_car,
        max_episode_steps=999,
        entry_point=f"{_MODULE}.continuous_mountain_car:Continuous_MountainCarEnv",
        **shared,
    )
    register_compiled_env("MountainCar-v0", discrete)
    register_compiled_env("MountainCarContinuous-v0", continuous)


# -- Pendulum ---------------------------------------------------------------------------------------------------------


class PendulumParameters(NamedTuple):
    """SI units; `g` is the gravity that the env's constructor takes."""

    g: float = 10.0
    m: float = 1.0
    l: float = 1.0  # noqa: E741  Gymnasium's name
    dt: float = 0.05
    max_speed: float = 8.0
    max_torque: float = 2.0


def _start_pendulum(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> None:
    state[0, row] = uniform(generators, row, -bounds[0], bounds[0])
    state[1, row] = uniform(generators, row, -bounds[1], bounds[1])


def _advance_pendulum(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> tuple[Any, Any]:
    theta, speed = state[0, row], state[1, row]
    torque = _between(actions[row, 0], -parameters.max_torque, parameters.max_torque)
    turn = 2.0 * math.pi
    angle = theta - turn * np.floor((theta + math.pi) / turn)
    costs = angle * angle + 0.1 * speed * speed + 0.001 * torque * torque
    sine, _ = sine_cosine(theta)
    pulled = 3.0 * parameters.g / (2.0 * parameters.l) * sine
    pushed = 3.0 / (parameters.m * parameters.l * parameters.l) * torque
    speed = _between(speed + (pulled + pushed) * parameters.dt, -parameters.max_speed, parameters.max_speed)
    state[0, row] = theta + speed * parameters.dt
    state[1, row] = speed
    return -costs, False


def _observe_pendulum(state: Any, row: Any, observations: Any, parameters: Any) -> None:
    sine, cosine = sine_cosine(state[0, row])
    observations[row, 0] = cosine
    observations[row, 1] = sine
    observations[row, 2] = state[1, row]


def _register_pendulum() -> None:
    high = np.array([1.0, 1.0, PendulumParameters().max_speed], np.float32)
    largest = PendulumParameters().max_torque
    env = CompiledEnv(
        observation_space=spaces.Box(-high, high, dtype=np.float32),
        action_space=spaces.Box(-largest, largest, (1,), np.float32),
        state_size=2,
        parameters=PendulumParameters(),
        start=_start_pendulum,
        advance=_advance_pendulum,
        observe=_observe_pendulum,
        advances_ended=True,
        bounds=(math.pi, 1.0),
        read_options=largest_angle_and_speed,
        max_episode_steps=200,
        keywords={"g": "g"},
        entry_point=f"{_MODULE}.pendulum:PendulumEnv",
    )
    register_compiled_env("Pendulum-v1", env)


_register_cart_pole()
_register_mountain_cars()
_register_pendulum()
register_acrobot()
