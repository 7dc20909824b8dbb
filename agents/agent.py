"""Train, go on, play: what ``vecenv train`` and ``vecenv eval`` do, from Python.

    from vecenv.agents.agent import Agent
    from vecenv.agents.config import PPOConfig, RunConfig

    agent = Agent(RunConfig("CartPole-v1", solve_at=475.0, settings=PPOConfig(num_envs=8)))
    summary = agent.train(run_dir="runs/cartpole")      # envs are made from the config, and closed
    agent.evaluate(episodes=10).episodes                # returns of whole episodes, in fresh envs

With the defaults that the command has for an environment, and changes to them:

    agent = Agent.for_env("CartPole-v1", "dqn", solve_at=475.0, num_envs=16)

With a vector env of one's own, made with the keywords that the algorithm asks for:

    envs = vecenv.make_vec(my_env, **agent.env_settings())
    agent.train(envs, run_dir="runs/mine")

And later, also in another process:

    agent = Agent.load("runs/cartpole")                 # or .../best.pt
    policy = agent.policy(envs)
    actions = policy.act(observations).actions          # [B] or [B, A] for observations [B, ...]
    agent.train(run_dir="runs/cartpole", max_seconds=60.0)      # goes on where it stopped, bit for bit on the CPU
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import vecenv
from vecenv import VecEnv
from vecenv.doctor import missing_extra
from vecenv.errors import UnknownSetting

try:
    from .algorithms import find_algorithm, suited_config
    from .checkpoint_keeper import load_run
    from .config import RunConfig
    from .display import ProgressDisplay, quiet_console
    from .distributed import connect
    from .evaluation import trained_policy
    from .inference import BatchedPolicy
    from .playing import MOST_ENVS, PlayedEpisodes, play_episodes
    from .run_directory import RunDirectory
    from .training_run import Resume, TrainingRun, choose_device, device_of_run, place_of_run
except ModuleNotFoundError as error:
    missing = missing_extra(error, "agents")
    if missing is None:
        raise
    raise missing from error


class Agent:
    """One agent: its settings, and its checkpoint once there is one.

    Attributes:
        config: settings of the run; ``config.settings`` are the hyper-parameters of ``config.algorithm``.
        path: the checkpoint, or None before training.

    Examples:
        >>> from vecenv.agents.config import PPOConfig
        >>> from vecenv.agents.dqn_config import DQNConfig
        >>> from vecenv.agents.es_config import ESConfig
        >>> ppo = Agent(RunConfig("CartPole-v1", settings=PPOConfig(num_envs=4, num_steps=32, total_steps=256)))
        >>> summary = ppo.train(run_dir="runs/ppo")
        >>> summary["stopped_by"], summary["env_steps"] >= 256
        ('total_steps', True)
        >>> len(Agent.load("runs/ppo").evaluate(episodes=2).episodes)
        2
        >>> dqn = DQNConfig(num_envs=4, total_steps=200, learning_starts=100, minibatch_size=32)
        >>> Agent(RunConfig("CartPole-v1", algorithm="dqn", settings=dqn)).train(run_dir="runs/dqn")["solved"]
        False
        >>> es = ESConfig(num_pairs=2, total_steps=100, hidden_size=8)
        >>> Agent(RunConfig("CartPole-v1", algorithm="es", settings=es)).train(run_dir="runs/es")["solved"]
        False
        >>> Agent.for_env("CartPole-v1", "es", num_pairs=2).config.backend  # as vecenv train has it
        'auto-fast'
    """

    def __init__(self, config: RunConfig) -> None:
        """An untrained agent.

        Raises:
            UnknownSetting: the algorithm does not exist, or the hyper-parameters are another algorithm's.
        """
        expected = find_algorithm(config.algorithm).config
        if not isinstance(config.settings, expected):
            given = type(config.settings).__name__
            raise UnknownSetting(f"{config.algorithm} needs settings of {expected.__name__}, got {given}")
        self.config = config
        self.path: Path | None = None

    @classmethod
    def for_env(cls, env: str, algorithm: str = "ppo", *, preset: str | None = None, **changes: Any) -> Agent:
        """An untrained agent with the settings that ``vecenv train`` takes for this kind of environment.

        Args:
            env: id of the environment.
            algorithm: its name.
            preset: name of a set of hyper-parameters; None: the one that suits ``env``.
            changes: what is to be otherwise, as flags of the command say it: fields of `RunConfig`, such as
                ``solve_at``, and hyper-parameters, such as ``num_envs``.

        Raises:
            UnknownSetting: a name that does not exist, or a value that does not fit.
        """
        return cls(suited_config(env, algorithm, preset=preset, **changes))

    @classmethod
    def load(cls, path: str | Path) -> Agent:
        """The agent of a checkpoint, or of the ``checkpoint.pt`` in a run's folder. Runs no code from the file.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        config, _ = load_run(Path(path))
        agent = cls(config)
        agent.path = Path(path)
        return agent

    def env_settings(self) -> dict[str, Any]:
        """Keywords for `make_vec` that the algorithm needs: number of envs, slots, and the like."""
        return find_algorithm(self.config.algorithm).env_settings(self.config.settings)

    def train(
        self,
        envs: VecEnv | None = None,
        *,
        run_dir: str | Path | None = None,
        fresh_envs: bool = False,
        quiet: bool = True,
        **changes: Any,
    ) -> dict[str, Any]:
        """Train until the goal, a limit, Ctrl-C or SIGTERM; goes on from the checkpoint where there is one.

        In a script that ``torchrun`` started all ranks train together; the first one writes the files.

        Args:
            envs: made with :meth:`env_settings`; stays the caller's. None: made from the config and closed at the end.
            run_dir: folder for checkpoints, metrics, curve and summary; None: a new one under ``runs/``.
            fresh_envs: when going on, begin new episodes; otherwise saved states of environments are unpickled, which
                runs whatever code a forger put into the checkpoint.
            quiet: print nothing.
            changes: fields of `RunConfig` to change from now on, such as ``max_seconds``.

        Returns:
            The summary, as ``summary.json`` holds it.

        Raises:
            UnknownSetting: a setting, space or checkpoint that does not fit, or a folder that holds another run.
            FloatingPointError: the loss is no longer a finite number; checkpoints from before stay.
            VecEnvError: an environment or a worker failed.
            RankLost: another rank has ended.
        """
        unknown = sorted(changes.keys() - {field.name for field in dataclasses.fields(RunConfig)})
        if unknown:
            raise UnknownSetting(f"{', '.join(unknown)} is no setting of a run")
        config = dataclasses.replace(self.config, **changes)
        place = place_of_run(config)
        resume = folder = None
        if self.path is not None:
            folder = self.path if self.path.is_dir() else self.path.parent
        if run_dir is not None and place.rank == 0:
            RunDirectory.check_is_free(Path(run_dir), folder, "Agent.load it to go on")
        if self.path is not None and folder is not None:
            resume = Resume(load_run(self.path)[1], folder, fresh_envs)
        device = device_of_run(config, place)
        with connect(place, device) as world, TrainingRun(config, resume, envs, world) as run:
            directory = None
            if world.is_first:
                create = RunDirectory.create
                directory = create(config.env, config.algorithm) if run_dir is None else RunDirectory(run_dir)
            console = quiet_console() if quiet or directory is None else None
            summary = run.train(directory, ProgressDisplay(config.settings.total_steps, config.solve_at, console))
            path = world.broadcast_object(None if directory is None else directory.checkpoint)
        self.config, self.path = config, path
        return summary

    def policy(self, envs: VecEnv, *, sample: bool = False, seed: int = 0, device: str = "cpu") -> BatchedPolicy:
        """The trained policy for the spaces of ``envs``; statistics of normalisation are frozen.

        Args:
            envs: any vector env of the same spaces.
            sample: explore as in training, in place of the best known action.
            seed: of the policy's random draws.
            device: where the network lies; ``auto`` takes CUDA where there is one.

        Raises:
            UnknownSetting: before training.
            CheckpointError: the spaces are others.
        """
        if self.path is None:
            raise UnknownSetting("there is no policy yet: train first, or Agent.load a checkpoint")
        run, checkpoint = load_run(self.path)
        return trained_policy(run, checkpoint, envs, sample=sample, seed=seed, device=choose_device(device))

    def evaluate(
        self,
        envs: VecEnv | None = None,
        *,
        episodes: int = 10,
        seed: int = 1_000_000,
        max_steps: int | None = None,
        sample: bool = False,
    ) -> PlayedEpisodes:
        """Play whole episodes; each environment plays its share of them, fixed beforehand.

        Args:
            envs: made with ``statistics=True``, or wrapped so that infos tell of episodes; stays the caller's. None:
                made from the config and closed.
            episodes: at least 1.
            seed: of the environments and of the policy's draws.
            max_steps: steps per environment after which unfinished episodes are given up; None: no limit.
            sample: as of :meth:`policy`.

        Raises:
            UnknownSetting: before training; infos of ``envs`` do not tell of episodes, or it does not reset by itself.
            CheckpointError: the spaces are others.
            VecEnvError: an environment or a worker failed.
        """
        if envs is not None:
            return play_episodes(envs, self.policy(envs, sample=sample, seed=seed), episodes, seed, max_steps)
        run = self.config
        made = vecenv.make_vec(
            run.env, min(episodes, MOST_ENVS), run.backend, preprocess=run.preprocess, statistics=True
        )
        with made:
            return play_episodes(made, self.policy(made, sample=sample, seed=seed), episodes, seed, max_steps)
