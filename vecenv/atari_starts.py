"""How episodes of an Atari game begin, by the conventions of each peer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vecenv.atari_game import FIRE, Game

_NOOP = 0


def begin_episode(game: Game, first_screens: npt.NDArray[np.uint8], seed: int | None, goes_on: bool) -> bool:
    """Play the start of an episode and read its first frame.

    Args:
        game: the game; with a `seed` it was just seeded with it.
        first_screens: [2, H, 160] uint8, receives the first frame, and the one it is pooled with.
        seed: the seed of this reset, or None.
        goes_on: the game is not over and the episode is its next life.

    Returns:
        Whether a new game was begun.
    """
    conventions = game.config.conventions
    game.start_rewards = 0
    if conventions == "sb3":
        new_game = _SB3Start(game, first_screens, seed).begin(goes_on)
    else:
        if not goes_on:
            game.new_game()
        if conventions == "ale":
            new_game = _begin_ale(game)
        elif conventions == "envpool":
            new_game = _begin_envpool(game)
        else:
            new_game = _begin_gymnasium(game, seed)
        new_game = new_game or not goes_on
        game.read_screen(first_screens[0])
        first_screens[1] = 0
        # Until the first frames of the next step are read, these are the last ones.
        game.screens[0] = first_screens[0]
        pools_first = conventions == "envpool" and game.config.max_pool and game.config.frame_skip > 1
        game.screens[1] = first_screens[0] if pools_first else 0
    game.finish_start(new_game)
    return new_game


def _begin_ale(game: Game) -> bool:
    new_game = False
    if game.presses_fire:
        game.act_ends(FIRE)
    for _ in range(game.noop_starts.draw() - game.presses_fire):
        if game.act_ends(_NOOP):
            game.new_game()
            new_game = True
    return new_game


def _begin_envpool(game: Game) -> bool:
    new_game = False
    count = game.noop_starts.draw() + 1 - game.presses_fire if game.config.noop_max else 0
    for _ in range(count):
        if game.act_ends(_NOOP):
            game.new_game()
            new_game = True
    if game.presses_fire:
        game.act_ends(FIRE)
    return new_game


def _begin_gymnasium(game: Game, seed: int | None) -> bool:
    new_game = False
    for _ in range(draw_noops(game)):
        if game.act_ends(_NOOP):
            begin_again(game, seed)
            new_game = True
    if game.presses_fire and game.act_ends(FIRE):
        begin_again(game, seed)
        new_game = True
    return new_game


def draw_noops(game: Game) -> int:
    """The number of frames without an action, from the environment's generator."""
    noop_max = game.config.noop_max
    return int(game.generator.integers(1, noop_max + 1)) if noop_max > 0 else 0


def begin_again(game: Game, seed: int | None) -> None:
    """Begin a new game where a start ended the one before: Gymnasium's and SB3's wrappers pass the seed once more."""
    if seed is not None:
        game.seed(seed)
    game.new_game()


class _SB3Start:
    """The nested resets of ``NoopResetEnv``, ``EpisodicLifeEnv`` and ``FireResetEnv``.

    Args:
        game: the game.
        first_screens: receives the first frame.
        seed: the seed of this reset, or None.
    """

    def __init__(self, game: Game, first_screens: npt.NDArray[np.uint8], seed: int | None) -> None:
        self._game = game
        self._first_screens = first_screens
        self._seed = seed
        self._new_game = False
        self._loaded = seed is not None

    def begin(self, goes_on: bool) -> bool:
        """Play the start; see `begin_episode`."""
        game = self._game
        self._next_life(goes_on)
        if game.presses_fire:
            for action in game.actions[1:3]:
                ended = self._play_step(action)
                if ended:
                    shown = self._first_screens.copy()
                    self._next_life(goes_on=game.config.next_life and not game.game_over)
                    # FireResetEnv returns the frame before this second start.
                    self._first_screens[:] = shown
        return self._new_game

    def _next_life(self, goes_on: bool) -> None:
        """What ``EpisodicLifeEnv.reset`` does: an agent step without an action, or a new game."""
        game = self._game
        if goes_on:
            self._play_step(_NOOP)
            goes_on = not game.game_over
        if not goes_on:
            self._noop_start()
        game.lives = game.emulator.lives()

    def _noop_start(self) -> None:
        game = self._game
        self._restart()
        for _ in range(draw_noops(game)):
            if game.act_ends(_NOOP):
                self._restart()
        game.read_screen(self._first_screens[0])
        self._first_screens[1] = 0

    def _restart(self) -> None:
        # The first of these resets finds the game just seeded.
        begin_again(self._game, None if self._loaded else self._seed)
        self._loaded = False
        self._new_game = True

    def _play_step(self, action: int) -> bool:
        """An agent step of the start; its frames count as the first ones."""
        game = self._game
        total, terminated, truncated = game.play_step(action)
        game.start_rewards += total
        game.steps = 0 if self._new_game else game.steps - 1
        self._first_screens[:] = game.screens
        return terminated or truncated
