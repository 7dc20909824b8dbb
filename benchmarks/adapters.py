"""``vecenv bench adapters``: Stable-Baselines3 and Tianshou with their own vector envs and with ours, in turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium

from vecenv.doctor import describe_machine
from vecenv.errors import MissingExtra, UnknownSetting
from vecenv.factory import make_vec
from vecenv.registration import find_game

from .arguments import add_output, add_quick, add_timing, make_parser, positive_int
from .contestants import close_envs
from .report import check_output, print_table, publish, samples_of
from .timing import Rates, alternate, measure_rate

_TRAINERS = {"sb3": ("stable_baselines3", "stable-baselines3"), "tianshou": ("tianshou", "tianshou")}
_UNIT = "steps/s"


class AdapterContestant:
    """A trainer on one vector env.

    Args:
        name: of the row.
        work: does some steps and returns how many.
        close: ends it.
    """

    def __init__(self, name: str, work: Callable[[], int], close: Callable[[], None]) -> None:
        self.name = name
        self._work = work
        self.close = close

    def measure(self, seconds: float) -> float:
        """Steps per second over about `seconds` seconds."""
        return measure_rate(self._work, seconds)


def _check_for_tianshou(env_id: str) -> None:
    """Refuse what the Q network cannot play, before SB3's rows are measured.

    Raises:
        UnknownSetting: an Atari game, no such environment, or its actions are not Discrete.
    """
    if find_game(env_id) is not None:
        raise UnknownSetting(f"{env_id} is an Atari game, which is measured with --trainer sb3 only")
    with make_vec(env_id, 1, "sync") as envs:
        if not isinstance(envs.single_action_space, gymnasium.spaces.Discrete):
            raise UnknownSetting(
                f"{env_id}: Tianshou's rows need a Discrete action space, got {envs.single_action_space}; "
                "--trainer sb3 measures the others alone"
            )


def sb3_contestants(env_id: str, num_envs: int, rollout_steps: int) -> list[AdapterContestant]:
    """SB3's PPO: rollouts of `rollout_steps` steps of each env, and the updates between them."""
    from stable_baselines3.common import env_util
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    import vecenv.sb3

    atari = find_game(env_id) is not None
    name = "make_atari_env" if atari else "make_vec_env"
    rows: list[tuple[str, Any, Any]] = [
        ("SB3 PPO on vecenv.sb3.SubprocVecEnv", getattr(vecenv.sb3, name), vecenv.sb3.SubprocVecEnv),
        ("SB3 PPO on vecenv.sb3.SyncVecEnv", getattr(vecenv.sb3, name), vecenv.sb3.SyncVecEnv),
        ("SB3 PPO on its SubprocVecEnv", getattr(env_util, name), SubprocVecEnv),
        ("SB3 PPO on its DummyVecEnv", getattr(env_util, name), DummyVecEnv),
    ]
    contestants = []
    for row, make, vec_env_cls in rows:
        # SB3's worker processes know no game by its id; ours do
        env = functools.partial(_make_game, env_id) if atari and vec_env_cls is SubprocVecEnv else env_id
        envs = make(env, n_envs=num_envs, seed=0, vec_env_cls=vec_env_cls)
        if atari:
            envs = VecFrameStack(envs, 4)
        contestants.append(_ppo(row, envs, "CnnPolicy" if atari else "MlpPolicy", rollout_steps))
    return contestants


def _make_game(env_id: str) -> gymnasium.Env[Any, Any]:
    """A game, in a process that may not have registered any."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make(env_id, render_mode="rgb_array")


def _ppo(name: str, envs: Any, policy: str, rollout_steps: int) -> AdapterContestant:
    from stable_baselines3 import PPO

    batch = min(256, rollout_steps * envs.num_envs)
    model = PPO(policy, envs, n_steps=rollout_steps, batch_size=batch, n_epochs=4, seed=0, device="cpu")

    def train() -> int:
        model.learn(rollout_steps * envs.num_envs, reset_num_timesteps=False)
        return int(rollout_steps * envs.num_envs)

    return AdapterContestant(name, train, functools.partial(close_envs, envs))


def tianshou_contestants(env_id: str, num_envs: int, rollout_steps: int) -> list[AdapterContestant]:
    """Tianshou's Collector with a small Q network that acts for every step; no updates."""
    import tianshou.env

    import vecenv.tianshou

    rows: list[tuple[str, Any]] = [
        ("Tianshou Collector on vecenv.tianshou.SubprocVectorEnv", vecenv.tianshou.SubprocVectorEnv),
        ("Tianshou Collector on vecenv.tianshou.DummyVectorEnv", vecenv.tianshou.DummyVectorEnv),
        ("Tianshou Collector on its SubprocVectorEnv", tianshou.env.SubprocVectorEnv),
        ("Tianshou Collector on its DummyVectorEnv", tianshou.env.DummyVectorEnv),
    ]
    env_fns = [functools.partial(gymnasium.make, env_id) for _ in range(num_envs)]
    return [_collector(name, make(env_fns), rollout_steps) for name, make in rows]


def _collector(name: str, envs: Any, rollout_steps: int) -> AdapterContestant:
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.net.common import Net

    space = envs.action_space[0]
    net = Net(state_shape=envs.observation_space[0].shape, action_shape=space.n, hidden_sizes=[64, 64])
    policy: Any = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    collector: Any = Collector(policy, envs, VectorReplayBuffer(20_000, envs.env_num))
    collector.reset()

    def collect() -> int:
        return int(collector.collect(n_step=rollout_steps * envs.env_num).n_collected_steps)

    return AdapterContestant(name, collect, envs.close)


def measure(contestants: Sequence[AdapterContestant], rounds: int, seconds: float) -> list[Rates]:
    """Rates of contestants that take turns; they are closed afterwards."""
    try:
        return alternate(contestants, rounds=rounds, seconds=seconds, warm_up_seconds=min(1.0, seconds))
    finally:
        for contestant in contestants:
            contestant.close()


def print_adapters(title: str, rates: Sequence[Rates]) -> None:
    """Print a table: steps per second, time for 100,000 steps, and how the first row compares with each of the others.

    Args:
        title: line above the table.
        rates: the measured rates, ours first.
    """
    rows = [
        [
            row.name,
            f"{row.median:,.0f}",
            f"{row.lowest:,.0f} - {row.highest:,.0f}",
            f"{100_000 / row.median:,.1f}",
            "" if row is rates[0] else f"{rates[0].ratio_to(row):.2f}x",
        ]
        for row in rates
    ]
    print_table(title, ["what", _UNIT, "lowest - highest", "s per 100k steps", "first row / this"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table per trainer and write a JSON file.

    Args:
        argv: words after ``vecenv bench adapters``; None: those of this process.

    Returns:
        The exit code: 0; with ``--compare`` 1 if something of ours got slower beyond noise.
    """
    parser = make_parser("vecenv bench adapters", __doc__)
    text = "id of an environment with a Discrete action space, for Atari with SB3 only (default CartPole-v1)"
    parser.add_argument("env", metavar="ENV", nargs="?", default="CartPole-v1", help=text)
    parser.add_argument("--num-envs", type=positive_int, metavar="N", default=8, help="environments (default 8)")
    text = "whose trainer runs (default both)"
    parser.add_argument("--trainer", choices=(*_TRAINERS, "both"), default="both", help=text)
    text = "steps of each environment that one call collects (default 64)"
    parser.add_argument("--rollout-steps", type=positive_int, metavar="N", default=64, help=text)
    add_timing(parser, rounds=5, seconds=3.0)
    add_quick(parser, rounds=3, seconds=0.3)
    add_output(parser, "adapters")
    arguments = parser.parse_args(argv)
    check_output(arguments, "adapters")
    names = list(_TRAINERS) if arguments.trainer == "both" else [arguments.trainer]
    if find_game(arguments.env) is not None and arguments.trainer == "both":
        names = ["sb3"]
    for name in names:
        package, distribution = _TRAINERS[name]
        if find_spec(package) is None:
            raise MissingExtra(distribution, name)
    if "tianshou" in names:
        _check_for_tianshou(arguments.env)
    print(describe_machine())
    results, samples = {}, {}
    for name in names:
        make = sb3_contestants if name == "sb3" else tianshou_contestants
        contestants = make(arguments.env, arguments.num_envs, arguments.rollout_steps)
        rates = measure(contestants, arguments.rounds, arguments.seconds)
        print_adapters(f"{arguments.env}, {arguments.num_envs} envs", rates)
        results[name] = [row.as_dict() for row in rates]
        samples.update(samples_of(rates, _UNIT, theirs=[row.name for row in rates if " on its " in row.name]))
    settings = {
        key: getattr(arguments, key) for key in ("env", "num_envs", "trainer", "rollout_steps", "rounds", "seconds")
    }
    return publish(arguments, "adapters", settings=settings, results=results, samples=samples)
