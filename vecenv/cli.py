"""The command ``vecenv``: finds the code of a sub-command, and only that, and turns expected errors into one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from .doctor import missing_extra
from .errors import EnvError, MissingExtra, UnknownSetting, WorkerDied, WorkersUnavailable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what shells report for a process ended by Ctrl-C


@dataclass(frozen=True)
class Command:
    """One sub-command.

    Attributes:
        module: module with a function ``main(argv) -> int | None``; imported when the command is called.
        summary: one line for ``vecenv --help``.
        extra: the extra of this distribution that installs what the module needs, "" for none.
    """

    module: str
    summary: str
    extra: str = ""


COMMANDS = {
    "train": Command("vecenv.agents.train", "train an agent: vecenv train ppo --env CartPole-v1", "agents"),
    "eval": Command("vecenv.agents.evaluation", "play with a trained agent: vecenv eval CHECKPOINT", "agents"),
    "demo": Command(
        "vecenv.benchmarks.demo",
        "a look at what it does: Pong beside Gymnasium, PPO on CartPole; under two minutes",
        "demo",
    ),
    "bench": Command(
        "vecenv.benchmarks", "measure: vecenv bench throughput ENV; vecenv bench lists the others", "bench"
    ),
    "tune": Command(
        "vecenv.benchmarks.tune", "find the fastest back end, workers and batch size: vecenv tune ENV", "bench"
    ),
    "doctor": Command("vecenv.doctor", "what is installed, what each back end can do here, and what is wrong"),
}

BENCHMARKS = {
    "throughput": Command(
        "vecenv.benchmarks.throughput", "steps per second against the peers, in alternating rounds", "bench"
    ),
    "limits": Command(
        "vecenv.benchmarks.limits", "where the time goes between a bare Atari emulator and a vector env", "bench"
    ),
    "wrappers": Command("vecenv.benchmarks.wrappers", "what each stage of an Atari agent step costs", "bench"),
    "parity": Command("vecenv.benchmarks.parity", "Atari presets beside the peers they are named after, bit for bit"),
    "workers": Command(
        "vecenv.benchmarks.workers", "what waking workers costs, how busy they are, uneven environments", "bench"
    ),
    "compiled": Command(
        "vecenv.benchmarks.compiled", "CartPole as one kernel, beside Gymnasium's own vector env and EnvPool", "bench"
    ),
    "engines": Command("vecenv.benchmarks.engines", "what our adapters cost beside the engines used bare", "bench"),
    "inference": Command("vecenv.benchmarks.inference", "actions per second, batched or once per env", "agents"),
    "adapters": Command("vecenv.benchmarks.adapters", "SB3 and Tianshou on their vector envs and on ours", "bench"),
    "document": Command("vecenv.benchmarks.document", "measure everything, on one page with the targets", "bench"),
    "learning": Command("vecenv.benchmarks.learning", "return against time and steps, over seeds", "agents"),
    "scaling": Command("vecenv.benchmarks.scaling", "what messages and bytes cost, and a model of many cores", "ray"),
    "speedups": Command("vecenv.benchmarks.speedups", "the speed ladders of DQN, PPO and ES, rung by rung", "bench"),
    "startup": Command("vecenv.benchmarks.startup", "time to import and to build, memory of a worker", "bench"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command.

    Args:
        argv: words after the program's name; None: those of this process.

    Returns:
        The exit code: 0 success, 1 the command failed, 2 it was called wrongly or something is not installed,
        130 Ctrl-C, or SIGTERM while training.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words, COMMANDS, "vecenv")
    except (MissingExtra, UnknownSetting) as error:
        return _say(error, EXIT_USAGE)
    except (WorkerDied, WorkersUnavailable) as error:
        return _say(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`vecenv doctor | head -1`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _is_gymnasiums(error, "UnregisteredEnv"):
            return _say(error, EXIT_USAGE)
        if _is_gymnasiums(error, "DependencyNotInstalled"):  # of an environment; without the traceback of building it
            return _say(error.failures[0].message if isinstance(error, EnvError) else error, EXIT_USAGE)
        if isinstance(error, OSError) and error.filename is not None:  # which errors of environments do not have
            return _say(f"{error.filename}: {error.strerror}", EXIT_FAILED)
        raise


def _dispatch(words: list[str], commands: dict[str, Command], program: str) -> int:
    """Call the command that the first word names with the rest of the words."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(commands, program))
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version") and program == "vecenv":
        print(f"vecenv {version('vecenv')}")
        return 0
    name, rest = words[0], words[1:]
    if name not in commands:
        return _say(f"there is no command {name!r}; the commands are: {', '.join(commands)}", EXIT_USAGE, program)
    if program == "vecenv" and name == "bench":
        return _dispatch(rest, BENCHMARKS, "vecenv bench")
    return _call(commands[name], rest)


def _call(command: Command, words: list[str]) -> int:
    """Import a command and run it; a package that is not installed becomes `MissingExtra`."""
    try:
        main_function: Callable[[Sequence[str]], int | None] = importlib.import_module(command.module).main
        return main_function(words) or 0
    except ModuleNotFoundError as error:
        missing = missing_extra(error, command.extra)
        if missing is None:
            raise
        raise missing from error


def _overview(commands: dict[str, Command], program: str) -> str:
    """The text of ``--help``."""
    width = max(map(len, commands))
    lines = [f"usage: {program} COMMAND [ARGUMENTS]", ""]
    lines += [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    more = "; `vecenv --version` says which version this is" if program == "vecenv" else ""
    lines += ["", f"`{program} COMMAND --help` lists the arguments of one command{more}."]
    return "\n".join(lines)


def _is_gymnasiums(error: Exception, name: str) -> bool:
    """Whether an error is of this class of Gymnasium's (which is not imported only to ask this)."""
    gymnasium_error = sys.modules.get("gymnasium.error")
    return gymnasium_error is not None and isinstance(error, getattr(gymnasium_error, name))


def _say(message: object, exit_code: int, program: str = "vecenv") -> int:
    """Print one line to stderr and hand the exit code back."""
    print(f"{program}: {' '.join(str(message).split())}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
