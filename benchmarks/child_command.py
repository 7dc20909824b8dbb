"""A command of vecenv in a process of its own, which has the machine alone and leaves its output in a file.

Ctrl-C reaches every process of a terminal at once, and a training that hears it twice ends without a checkpoint. So the
command has a session of its own; a Ctrl-C here is passed on to it once and its end is waited for, a second one kills.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vecenv.fork_server import python_command

_CODE = """
import os
from vecenv.lifeline import end_with
lifeline = int(sys.argv.pop(1))
os.set_inheritable(lifeline, False)
end_with(lifeline)
from vecenv.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_command(words: Sequence[str], log: Path) -> int:
    """Run ``vecenv WORDS`` to its end; it never outlives this process.

    Args:
        words: the command, such as ``["train", "ppo", "--env", "CartPole-v1"]``.
        log: what it prints is appended there; the folder is made.

    Returns:
        Its exit code; below 0 the number of the signal that ended it.

    Raises:
        KeyboardInterrupt: Ctrl-C came; the command has ended by then.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    lifeline, held = os.pipe()  # the kernel closes the write end with this process, and the command notices
    try:
        with log.open("a") as output:
            process = subprocess.Popen(
                python_command(_CODE, str(lifeline), *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # the file can be followed while it grows
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise
    finally:
        os.close(lifeline)
        os.close(held)


def last_line(log: Path) -> str:
    """What a command said last; where it failed, that is why."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it end in its own way, a training with a checkpoint; without patience after another Ctrl-C."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
