"""An actor of a Ray cluster that plays pairs of a population."""

from __future__ import annotations

import pickle

from vecenv.ray_actor import HostedActor

from .population_evaluation import Broadcast
from .population_player import DONE, PopulationPlayer, failed_answer


class PopulationActor(HostedActor):
    """Hosts a `PopulationPlayer`; its answers are short enough to travel without Ray's object store."""

    def __init__(self) -> None:
        """Nothing to play in yet."""
        super().__init__()
        self._player: PopulationPlayer | None = None

    def build(self, setup: bytes, num_envs: int) -> bytes:
        """Build environments and networks.

        Args:
            setup: pickled `PlayerSetup`.
            num_envs: how many environments.

        Returns:
            An answer, see `read_answer`, which holds nothing.
        """
        try:
            self._player = PopulationPlayer(pickle.loads(setup), num_envs)
        except Exception as error:
            return failed_answer(error)
        return DONE

    def play(self, broadcast: Broadcast, pairs: list[int]) -> bytes:
        """Play some pairs.

        Args:
            broadcast: of the generation; Ray hands it in from the store of this machine, its arrays uncopied.
            pairs: indices of the pairs.

        Returns:
            An answer that holds packed results.
        """
        assert self._player is not None
        return self._player.play(broadcast, pairs)

    def close(self) -> list[str]:
        """Close the environments; nothing is told of how it went."""
        if self._player is not None:
            self._player.close()
        return []
