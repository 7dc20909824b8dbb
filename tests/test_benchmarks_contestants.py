"""What takes turns in the benchmarks ends in bounded time, peers that were interrupted included."""

from __future__ import annotations

from contextlib import closing

import pytest
from gymnasium.vector import AsyncVectorEnv

import vecenv
from vecenv.benchmarks.compiled import contestants
from vecenv.benchmarks.contestants import Settings, VectorContestant, draw_actions
from vecenv.benchmarks.peers import PEERS
from vecenv.testing import CountEnv

SETTINGS = Settings("CartPole-v1", 2, 1)


@pytest.mark.timeout(30)
def test_a_peer_whose_step_was_interrupted_is_ended() -> None:
    """One answer was taken before the Ctrl-C; the peer's own `close` would wait for it without end."""
    envs = AsyncVectorEnv([CountEnv, CountEnv])
    contestant = VectorContestant("peer", envs, draw_actions(SETTINGS, 2), SETTINGS)
    envs.step_async([0, 0])
    envs.parent_pipes[0].recv()
    with pytest.raises(KeyboardInterrupt), closing(contestant):
        raise KeyboardInterrupt
    assert not any(process.is_alive() for process in envs.processes)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_ours_is_closed_as_always(error: type[BaseException]) -> None:
    envs = vecenv.make_vec(CountEnv, 2, "subproc", num_workers=2)
    with (
        pytest.raises(error),
        closing(VectorContestant("ours", envs, draw_actions(SETTINGS, 2), SETTINGS)),
    ):
        raise error
    assert envs.closed


def test_a_peer_that_was_not_interrupted_closes_itself() -> None:
    envs = AsyncVectorEnv([CountEnv, CountEnv])
    with closing(VectorContestant("peer", envs, draw_actions(SETTINGS, 2), SETTINGS)) as contestant:
        assert contestant.measure(0.01) > 0
    assert [process.exitcode for process in envs.processes] == [0, 0]


@pytest.mark.filterwarnings("error")
def test_what_envpool_says_of_its_spaces_is_not_in_our_output() -> None:
    pytest.importorskip("envpool")
    peer = PEERS["envpool"]
    with closing(peer.build(SETTINGS, peer.title, draw_actions(SETTINGS, 2))) as contestant:
        assert contestant.measure(0.01) > 0
    assert any(steps.name == "EnvPool" for steps in contestants(2))
