"""Gymnasium's Acrobot as functions on one row of a batch, for the `compiled` back end; see `classic_control`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numba import njit

from vecenv.classic_control_options import low_and_high
from vecenv.compiled_env import CompiledEnv, register_compiled_env
from vecenv.pcg64 import uniform
from vecenv.sine_cosine import sine_cosine

_TURN = 2.0 * math.pi


class AcrobotParameters(NamedTuple):
    """SI units."""

    dt: float = 0.2
    link_length: float = 1.0
    link_mass: float = 1.0
    link_center: float = 0.5
    link_inertia: float = 1.0
    gravity: float = 9.8
    max_speed_1: float = 4 * math.pi
    max_speed_2: float = 9 * math.pi


def _start(state: Any, row: Any, generators: Any, bounds: Any, parameters: Any) -> None:
    for index in range(4):
        drawn = uniform(generators, row, bounds[0], bounds[1])
        state[index, row] = np.float32(drawn)  # Gymnasium keeps the start in float32


@njit(forceinline=True)
def _accelerations(angle_1: Any, angle_2: Any, speed_1: Any, speed_2: Any, torque: Any, parameters: Any) -> Any:
    """Angular accelerations of both links, by the equations of Sutton and Barto's book."""
    mass, length, center = parameters.link_mass, parameters.link_length, parameters.link_center
    sine_2, cosine_2 = sine_cosine(angle_2)
    sine_1, _ = sine_cosine(angle_1)  # cos(a - pi / 2) is sin(a)
    sine_sum, _ = sine_cosine(angle_1 + angle_2)
    squares = center * center + length * length + center * center
    d1 = mass * (squares + 2.0 * length * center * cosine_2) + 2.0 * parameters.link_inertia
    d2 = mass * (center * center + length * center * cosine_2) + parameters.link_inertia
    phi2 = mass * center * parameters.gravity * sine_sum
    coupled = mass * length * center * sine_2
    phi1 = -coupled * speed_2 * speed_2 - 2.0 * coupled * speed_2 * speed_1
    phi1 += mass * (center + length) * parameters.gravity * sine_1 + phi2
    ratio = d2 / d1
    second = torque + ratio * phi1 - coupled * speed_1 * speed_1 - phi2
    second /= mass * center * center + parameters.link_inertia - d2 * ratio
    return -(d2 * second + phi1) / d1, second


@njit(forceinline=True)
def _wrapped(angle: Any) -> Any:
    """The angle within -pi to pi."""
    too_large, too_small = angle > math.pi, angle < -math.pi
    less = angle - _TURN * np.ceil((angle - math.pi) / _TURN)
    more = angle + _TURN * np.ceil((-math.pi - angle) / _TURN)
    angle = less if too_large else angle
    return more if too_small else angle


@njit(forceinline=True)
def _limited(value: Any, largest: Any) -> Any:
    value = -largest if value < -largest else value
    return largest if value > largest else value


def _advance(state: Any, row: Any, actions: Any, generators: Any, parameters: Any) -> tuple[Any, Any]:
    """One step of Runge and Kutta's fourth-order method."""
    torque = float(actions[row] - 1)
    angle_1, angle_2, speed_1, speed_2 = state[0, row], state[1, row], state[2, row], state[3, row]
    step = parameters.dt
    half = step / 2.0
    a1, a2 = _accelerations(angle_1, angle_2, speed_1, speed_2, torque, parameters)
    v1, v2 = speed_1 + half * a1, speed_2 + half * a2
    b1, b2 = _accelerations(angle_1 + half * speed_1, angle_2 + half * speed_2, v1, v2, torque, parameters)
    w1, w2 = speed_1 + half * b1, speed_2 + half * b2
    c1, c2 = _accelerations(angle_1 + half * v1, angle_2 + half * v2, w1, w2, torque, parameters)
    z1, z2 = speed_1 + step * c1, speed_2 + step * c2
    d1, d2 = _accelerations(angle_1 + step * w1, angle_2 + step * w2, z1, z2, torque, parameters)
    sixth = step / 6.0
    angle_1 = _wrapped(angle_1 + sixth * (speed_1 + 2.0 * v1 + 2.0 * w1 + z1))
    angle_2 = _wrapped(angle_2 + sixth * (speed_2 + 2.0 * v2 + 2.0 * w2 + z2))
    state[0, row] = angle_1
    state[1, row] = angle_2
    state[2, row] = _limited(speed_1 + sixth * (a1 + 2.0 * b1 + 2.0 * c1 + d1), parameters.max_speed_1)
    state[3, row] = _limited(speed_2 + sixth * (a2 + 2.0 * b2 + 2.0 * c2 + d2), parameters.max_speed_2)
    _, height_1 = sine_cosine(angle_1)
    _, height_2 = sine_cosine(angle_1 + angle_2)
    terminated = -height_1 - height_2 > 1.0
    return 0.0 if terminated else -1.0, terminated


def _observe(state: Any, row: Any, observations: Any, parameters: Any) -> None:
    sine_1, cosine_1 = sine_cosine(state[0, row])
    sine_2, cosine_2 = sine_cosine(state[1, row])
    observations[row, 0] = cosine_1
    observations[row, 1] = sine_1
    observations[row, 2] = cosine_2
    observations[row, 3] = sine_2
    observations[row, 4] = state[2, row]
    observations[row, 5] = state[3, row]


def register_acrobot() -> None:
    """Make `Acrobot-v1` known."""
    parameters = AcrobotParameters()
    high = np.array([1.0, 1.0, 1.0, 1.0, parameters.max_speed_1, parameters.max_speed_2], np.float32)
    env = CompiledEnv(
        observation_space=spaces.Box(-high, high, dtype=np.float32),
        action_space=spaces.Discrete(3),
        state_size=4,
        parameters=parameters,
        start=_start,
        advance=_advance,
        observe=_observe,
        advances_ended=True,
        bounds=(-0.1, 0.1),
        read_options=low_and_high(-0.1, 0.1),
        max_episode_steps=500,
        entry_point="gymnasium.envs.classic_control.acrobot:AcrobotEnv",
    )
    register_compiled_env("Acrobot-v1", env)
