"""Evolution strategies (Salimans et al., 2017): antithetic noise in the parameters, ranked returns, Adam.

Nobody differentiates a network here. Each member of a population plays one whole episode with the parameters plus or
minus noise of its own; the mean of the noise, weighted by how well it did, is the direction in which returns rise.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenv import VecEnv

from .config import Precision
from .es_config import ES_PRESETS, USED_ONLY_WITH, ESConfig
from .inference import BatchedPolicy
from .learner import Algorithm, Episode, UpdateReport
from .networks import sees_images
from .perturbation import FITNESS_SHAPING, estimate_gradient
from .population_engine import ENGINES, EngineRequest, EnvMaker, env_maker_of
from .population_evaluation import Broadcast, PairResult
from .population_network import PolicyNetwork, action_head, build_policy_network
from .population_statistics import ObservationStatistics, play_mean_image


class ES:
    """Learner: plays one generation, then takes one step of Adam.

    Everything random is drawn from (seed, generation, pair). Parameters are therefore bit for bit the same for any
    number of workers, with any engine, and after a resume: between two generations the environments hold nothing.

    Episodes that count as results, for ``--solve-at`` and the curve, are those of the whole population, noise included:
    a stricter measure than the parameters in its middle, and one that costs no step. With ``unperturbed_pairs`` they
    are the episodes of the parameters without noise.
    """

    def __init__(
        self,
        envs: VecEnv,
        config: ESConfig,
        *,
        seed: int = 0,
        device: str = "cpu",
        precision: Precision = "auto",
        make_envs: EnvMaker | None = None,
    ) -> None:
        """Build parameters and optimizer, and start the engine that plays.

        Args:
            envs: made with :func:`env_settings`; stays the caller's to close. An engine with workers takes only the
                spaces from it.
            config: hyper-parameters.
            seed: of the weights, the noise and the environments, 0 to 2**64 - 1.
            device: where the networks of the population lie.
            precision: ``auto`` is ``float32`` here.
            make_envs: builds environments in workers; by default more of the kind of ``envs``.

        Raises:
            NotImplementedError: for spaces that have no network or action head; for bfloat16.
            UnknownSetting: workers cannot know how to build the environments.
            ValueError: the network does not fit the observations, or the seed is too large.
        """
        if precision == "bfloat16":
            raise NotImplementedError("ES acts in float32 only: bfloat16 would round away much of the noise")
        if seed >= 2**64:
            raise ValueError(f"seed must be below 2**64, got {seed}")
        self.envs = envs
        self.config = config
        self.precision: dict[str, Any] = {"acting": "float32"}
        self.env_steps = 0
        self.generation = 0
        self.best: dict[str, Any] | None = None
        """``score``, ``generation``, ``parameters`` [P], ``observation_statistics`` of the best generation so far."""
        self._seed = seed
        network = build_policy_network(envs.single_observation_space, envs.single_action_space, config, seed)
        self.parameters = nn.Parameter(nn.utils.parameters_to_vector(network.parameters()).clone())
        """[P] float32, the middle of the population."""
        self._tensor_sizes = [parameter.numel() for parameter in network.parameters()]
        self.optimizer = torch.optim.Adam([self.parameters], config.learning_rate, weight_decay=config.weight_decay)
        self.observation_statistics: ObservationStatistics | None = None
        if config.normalise_observations:
            self.observation_statistics = ObservationStatistics(network.scaling.shift.numel())
        self._has_mean_image = network.scaling.shift.dim() > 0 and not config.normalise_observations
        self.mean_image: torch.Tensor | None = None
        """[D] float32, subtracted from images; from :meth:`prepare`."""
        makes = make_envs if make_envs is not None else env_maker_of(envs)
        self.engine = ENGINES[config.engine](EngineRequest(envs, makes, config, seed, device))

    def close(self) -> None:
        """End the workers; may be called again."""
        self.engine.close()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the engine's workers that live."""
        return list(getattr(self.engine, "pids", ()))

    @property
    def worker_machines(self) -> list[str] | None:
        """Names of the machines that they run on; None: all on this one."""
        return getattr(self.engine, "machines", None)

    def prepare(self) -> list[Episode]:
        """Before the first generation: images get the mean image of some random steps, which do not count."""
        if self._has_mean_image:
            self.mean_image = torch.from_numpy(play_mean_image(self.envs, self._seed))
        return []

    def reset(self, seed: int) -> None:
        """Nothing: every generation starts its own episodes, with seeds that follow from the seed of the run."""

    def train_once(self, stop_requested: Callable[[], bool] = lambda: False) -> UpdateReport:
        """Play one generation and learn from it.

        Raises:
            CollectionInterrupted: when ``stop_requested`` says so; everything is then as before the call.
            FloatingPointError: when a return or a parameter is no longer a finite number.
            EnvError: an environment raised.
            WorkerDied: no worker is left.
        """
        started = time.perf_counter()
        results = self.engine.evaluate(self._broadcast(), stop_requested)
        gathered = time.perf_counter()
        self._check_finite(results)
        perturbed = [result for result in results if result.pair < self.config.num_pairs]
        still = results[len(perturbed) :]
        population, unperturbed = _returns(perturbed), _returns(still)
        score = float(unperturbed.mean() if len(unperturbed) else population.mean())
        self._note_score(score)
        weights = FITNESS_SHAPING[self.config.fitness](population.reshape(-1))
        gradient_norm, update_norm = self._step(weights, [result.pair for result in perturbed])
        if self.observation_statistics is not None:
            _merge_statistics(self.observation_statistics, results)
        self.generation += 1
        steps = sum(sum(result.lengths) for result in results)
        self.env_steps += steps
        figures: dict[str, float | None] = {
            "generation": self.generation,
            **self._scores(population, unperturbed, score),
            "pairs_used": len(perturbed),
            "gradient_norm": gradient_norm,
            "mean_update_norm": update_norm,
            "gather_seconds": gathered - started,
            "train_seconds": time.perf_counter() - gathered,
            "gather_steps_per_second": steps / (gathered - started),
        }
        return UpdateReport([episode for result in still or results for episode in _episodes(result)], figures)

    def _scores(
        self, population: NDArray[np.float64], unperturbed: NDArray[np.float64], score: float
    ) -> dict[str, float | None]:
        """Columns that tell how the members fared, and how far the score has fallen below the best one."""
        best = None if self.best is None else float(self.best["score"])
        return {
            "population_mean": float(population.mean()),
            "population_std": float(population.std()),
            "population_max": float(population.max()),
            "unperturbed_mean": float(unperturbed.mean()) if len(unperturbed) else None,
            "best_score": best,
            "below_best": None if best is None else best - score,
        }

    def _broadcast(self) -> Broadcast:
        mean = factor = None
        if self.observation_statistics is not None:
            mean, factor = self.observation_statistics.normalisation()
        elif self.mean_image is not None:
            mean = self.mean_image.numpy()
        return Broadcast(self.generation, self.parameters.detach().numpy(), mean, factor)

    def _step(self, weights: NDArray[np.float64], pairs: Sequence[int]) -> tuple[float, float]:
        """One step of Adam; returns the gradient's norm and the mean norm of the step over the network's tensors.

        Args:
            weights: shaped fitness of all members [2 * pairs].
            pairs: their indices in the generation.
        """
        size = self.parameters.numel()
        gradient = torch.from_numpy(
            estimate_gradient(self._seed, self.generation, weights, self.config.noise_std, size, pairs)
        )
        before = self.parameters.detach().clone()
        # Optimizers go down, returns shall go up.
        self.parameters.grad = -gradient.to(torch.float32)
        self.optimizer.step()
        change = self.parameters.detach() - before
        if not bool(torch.isfinite(change).all()):
            raise FloatingPointError(
                f"the parameters are no longer finite after {self.generation} generations; lower --learning-rate"
            )
        norms = [float(part.norm()) for part in torch.split(change, self._tensor_sizes)]
        return float(gradient.norm()), float(np.mean(norms))

    def _check_finite(self, results: Sequence[PairResult]) -> None:
        for result in results:
            for side, total in zip("+-", result.returns, strict=True):
                if not np.isfinite(total):
                    raise FloatingPointError(
                        f"generation {self.generation}, pair {result.pair}, member {side}: the environment's return is "
                        f"{total}"
                    )

    def _note_score(self, score: float) -> None:
        """Keep the parameters just played, if none did better."""
        if self.best is None or score > self.best["score"]:
            statistics = self.observation_statistics
            self.best = {
                "score": score,
                "generation": self.generation,
                "parameters": self.parameters.detach().clone(),
                "observation_statistics": None if statistics is None else statistics.state_dict(),
            }

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on."""
        statistics = self.observation_statistics
        return {
            "parameters": self.parameters.detach().clone(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),  # torch hands out its own tensors
            "generation": self.generation,
            "env_steps": self.env_steps,
            "mean_image": self.mean_image,
            "observation_statistics": None if statistics is None else statistics.state_dict(),
            "best": self.best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            ValueError: the parameters belong to another network, or were trained with other switches.
        """
        parameters = state["parameters"]
        if parameters.shape != self.parameters.shape:
            raise ValueError(f"expected {self.parameters.numel()} parameters, got {parameters.numel()}")
        if (state["observation_statistics"] is None) is not (self.observation_statistics is None):
            raise ValueError("normalise_observations cannot be switched in the middle of a run")
        if state["mean_image"] is not None and not self._has_mean_image:
            raise ValueError("subtract_mean_image cannot be switched off in the middle of a run")
        self.parameters.detach().copy_(parameters)
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for group in self.optimizer.param_groups:  # these are settings, which may have been changed
            group["lr"], group["weight_decay"] = self.config.learning_rate, self.config.weight_decay
        self.generation = int(state["generation"])
        self.env_steps = int(state["env_steps"])
        if self.observation_statistics is not None:
            self.observation_statistics.load_state_dict(state["observation_statistics"])
        self.mean_image = state["mean_image"]
        self.best = state["best"]

    def env_states(self) -> list[bytes]:
        """Nothing is needed: every generation starts new episodes."""
        return []

    def set_env_states(self, states: Sequence[bytes]) -> None:
        """Nothing to set; see :meth:`env_states`."""


def _returns(results: Sequence[PairResult]) -> NDArray[np.float64]:
    """Returns of both members of every pair, [pairs, 2]."""
    return np.array([result.returns for result in results]).reshape(-1, 2)


def _episodes(result: PairResult) -> list[Episode]:
    return [Episode(*episode) for episode in zip(result.returns, result.lengths, strict=True)]


def _merge_statistics(statistics: ObservationStatistics, results: Sequence[PairResult]) -> None:
    """Add what the pairs saw, in their order; the members had the present mean as their reference."""
    reference = statistics.normalisation()[0].astype(np.float64)
    for result in results:
        if result.moments is not None:
            difference, variance = result.moments.astype(np.float64)
            statistics.merge(sum(result.lengths), reference + difference, variance)


def env_settings(config: ESConfig) -> dict[str, Any]:
    """Keywords for `make_vec`; where workers have environments of their own, one is enough to know the spaces."""
    if config.engine != "inline":
        return {"num_envs": 1}
    pairs_at_once = min(config.pairs_at_once or config.played_pairs, config.played_pairs)
    return {"num_envs": 2 * pairs_at_once, "copy": False}


def evaluation_policy(
    envs: VecEnv, config: ESConfig, state: dict[str, Any], *, sample: bool, seed: int, device: str
) -> BatchedPolicy:
    """The parameters without noise, of the best generation; those of the last one where ``sample`` is set.

    See :class:`~vecenv.agents.learner.EvaluationPolicy`; there is nothing to draw, actions follow from observations.
    """
    network = build_policy_network(envs.single_observation_space, envs.single_action_space, config, seed)
    best = state if sample or state["best"] is None else state["best"]
    load_parameters(network, best["parameters"], best["observation_statistics"])
    if state["mean_image"] is not None:
        network.scaling.set(state["mean_image"].numpy(), None)
    head = action_head(envs.single_action_space, device)
    return BatchedPolicy(network.to(device), head=head, device=device, seed=seed)


def load_parameters(network: PolicyNetwork, parameters: torch.Tensor, statistics: dict[str, Any] | None) -> None:
    """Set a network's weights from a flat vector, and its normalisation from saved statistics, if any.

    Args:
        network: to be set in place.
        parameters: [P] float32, in the order of ``network.parameters()``.
        statistics: of observations, as `ObservationStatistics.state_dict` gives them.

    Raises:
        ValueError: the vector has another length.
    """
    expected = sum(parameter.numel() for parameter in network.parameters())
    if parameters.numel() != expected:
        raise ValueError(f"expected {expected} parameters, got {parameters.numel()}")
    nn.utils.vector_to_parameters(parameters, network.parameters())
    if statistics is not None:
        running = ObservationStatistics(network.scaling.shift.numel())
        running.load_state_dict(statistics)
        shift, factor = running.normalisation()
        network.scaling.set(shift, factor)


ALGORITHM = Algorithm(
    "ES",
    ESConfig,
    ES_PRESETS,
    ES,
    env_settings,
    evaluation_policy,
    run_defaults={"backend": "auto-fast"},
    fixed_settings={"subtract_mean_image": sees_images},
    used_only_with=USED_ONLY_WITH,
    cpu_only_with={"engine": ("ray",)},
)
