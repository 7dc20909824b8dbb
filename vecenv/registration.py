"""Which Atari game an environment id means, and the ids of our own that Gymnasium's registry gets.

Everything here is static: importing it and asking it does not need ale_py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import gymnasium

from vecenv.errors import UnknownSetting

# Games for one player that come with ale_py, by their ROM names.
_ROM_NAMES = """
    adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon bank_heist
    basic_math battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival casino centipede
    chopper_command crazy_climber crossbow darkchambers defender demon_attack donkey_kong double_dunk
    earthworld elevator_action enduro entombed et fishing_derby flag_capture freeway frogger frostbite
    galaxian gopher gravitar hangman haunted_house hero human_cannonball ice_hockey jamesbond journey_escape
    kaboom kangaroo keystone_kapers king_kong klax koolaid krull kung_fu_master laser_gates lost_luggage
    mario_bros miniature_golf montezuma_revenge mr_do ms_pacman name_this_game othello pacman phoenix pitfall
    pitfall2 pong pooyan private_eye qbert riverraid road_runner robotank seaquest sir_lancelot skiing solaris
    space_invaders space_war star_gunner superman surround tennis tetris tic_tac_toe_3d time_pilot trondead
    turmoil tutankham up_n_down venture video_checkers video_chess video_cube video_pinball wizard_of_wor
    word_zapper yars_revenge zaxxon
"""
ROMS = tuple(_ROM_NAMES.split())

# Those of them that also have the older ids, such as PongNoFrameskip-v4.
_OLDER_ROM_NAMES = """
    adventure air_raid alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider
    berzerk bowling boxing breakout carnival centipede chopper_command crazy_climber defender demon_attack
    double_dunk elevator_action enduro fishing_derby freeway frostbite gopher gravitar hero ice_hockey
    jamesbond journey_escape kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix
    pitfall pong pooyan private_eye qbert riverraid road_runner robotank seaquest skiing solaris
    space_invaders star_gunner tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor
    yars_revenge zaxxon
"""
OLDER_ROMS = frozenset(_OLDER_ROM_NAMES.split())


@dataclass(frozen=True)
class AtariGame:
    """What an environment id says about the game itself; preprocessing is settled elsewhere.

    Attributes:
        rom: name of the ROM, such as ``"ms_pacman"``.
        repeat_action_probability: chance, at every frame, that the emulator repeats its previous action.
    """

    rom: str
    repeat_action_probability: float


def game_name(rom: str) -> str:
    """The name that ids use for a ROM: ``ms_pacman`` is ``MsPacman``."""
    return rom.title().replace("_", "")


@functools.cache
def _games() -> dict[str, AtariGame]:
    """Every id that names a game we play."""
    games = {}
    for rom in ROMS:
        name = game_name(rom)
        games[f"ALE/{name}-v5"] = AtariGame(rom, 0.25)
        games[f"vecenv/{name}-v5"] = AtariGame(rom, 0.0)
        if rom in OLDER_ROMS:
            games[f"{name}NoFrameskip-v4"] = AtariGame(rom, 0.0)
            games[f"{name}NoFrameskip-v0"] = AtariGame(rom, 0.25)
    return games


@functools.cache
def _refused_ids() -> dict[str, str]:
    """The ids of games whose own frame skip no preset keeps, and why, with what to use in their place."""
    reasons = {
        "": "skips a random number of frames per step, which is not available; use",
        "Deterministic": "is older Gymnasium's id for 4 frames per step, which every preset has; use",
    }
    return {
        f"{name}{kind}-{version}": f"{reason} '{name}NoFrameskip-{version}'"
        for name in map(game_name, OLDER_ROMS)
        for kind, reason in reasons.items()
        for version in ("v0", "v4")
    }


def find_game(env_id: str) -> AtariGame | None:
    """Look up an environment id.

    Args:
        env_id: a Gymnasium id, such as ``"PongNoFrameskip-v4"``, ``"ALE/Pong-v5"`` or ``"vecenv/Pong-v5"``.

    Returns:
        The game, or None where the id does not name an Atari game.

    Raises:
        UnknownSetting: an id with a frame skip of its own, which is not available; the message names another one.
    """
    if env_id in _refused_ids():
        raise UnknownSetting(f"{env_id!r} {_refused_ids()[env_id]}")
    return _games().get(env_id)


def register_envs() -> None:
    """Register ``vecenv/<Game>-v5`` for every game: `gymnasium.make` and `gymnasium.make_vec` then build it."""
    for rom in ROMS:
        env_id = f"vecenv/{game_name(rom)}-v5"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id,
                entry_point="vecenv.atari:make_registered_env",
                vector_entry_point="vecenv.gymnasium_entry:make_registered_vec",
                kwargs={"env_id": env_id},
            )
