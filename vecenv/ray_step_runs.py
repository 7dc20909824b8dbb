"""Steps without a call each: an actor on the caller's machine waits inside one call of Ray for the next actions.

A call of Ray costs more than a millisecond of processor time on both sides together, which is much beside short steps.
So the caller asks an actor once for a run of steps. From then on it writes actions into the memory that both map, and
wakes the actor through a pipe; the answer takes the same way back. A run ends as soon as a step has more to tell than
lies in the memory, which is then the result of the call, and when the actor is asked for anything else.

The pipes only wake: what was asked and done stands in the memory, so that a byte too many, or a caller that was
interrupted, does no harm. Who has died is still told by Ray, by the call that is not finished.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vecenv.signals import Signal, poll_milliseconds

#: Places in the array ``control`` of an actor's block: slot of the newest observations; whether actions are wide; the
#: run that the caller wants, others are over; the last step that it asked for; the last that the actor has made; the
#: last about which the result of the call tells more.
SLOT, WIDE, RUN, ASKED, MADE, TOLD = range(6)
#: Seconds after which a sleeping caller asks Ray whether an actor has died without closing its pipe.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class RunAddress:
    """Where the caller finds the pipes of an actor.

    Attributes:
        descriptors: of the actor, for the caller to write to and to read from.
        inodes: of these pipes.
    """

    descriptors: tuple[int, int]
    inodes: tuple[int, int]


class ServedRuns:
    """The actor's side.

    Args:
        control: see `RUN` and the others.

    Raises:
        OSError: no descriptors are left.
    """

    def __init__(self, control: Any) -> None:
        self._control = control
        self._step = 0
        asked, write_asked = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            read_made, made = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            os.close(asked)
            os.close(write_asked)
            raise
        self._signal = Signal(asked, made)
        self._far = [write_asked, read_made]
        self.address = RunAddress((write_asked, read_made), (os.fstat(write_asked).st_ino, os.fstat(read_made).st_ino))

    def leave_far_ends(self) -> None:
        """The caller has opened its ends: with ours closed, each side sees the other one go."""
        while self._far:
            os.close(self._far.pop())

    def next(self, run: int) -> bool:
        """Wait for the next step of a run; False: it is over, or the caller is gone."""
        poll = select.poll()
        poll.register(self._signal.read_fd, select.POLLIN)
        control = self._control
        while control[RUN] == run:
            if control[ASKED] != control[MADE]:
                self._step = control[ASKED].item()
                return True
            if not poll.poll()[0][1] & select.POLLIN:
                return False
            self._signal.clear()
        return False

    def answer(self, tells: bool) -> None:
        """The step that `next` told of is made; ``tells``: the result of the call says more about it."""
        if tells:
            self._control[TOLD] = self._step
        self._control[MADE] = self._step
        with contextlib.suppress(BrokenPipeError):
            self._signal.send()

    def close(self) -> None:
        """There will be no runs; a second call does nothing."""
        self.leave_far_ends()
        self._signal.close()


class StepRun:
    """The caller's side of one actor.

    Args:
        control: of the actor's block.
        descriptors: opened pipes, to write to and to read from; closed with this object.

    Attributes:
        reference: of the call that the actor is in; None: of none.
    """

    def __init__(self, control: Any, descriptors: tuple[int, int]) -> None:
        self._control = control
        self._signal = Signal(descriptors[1], descriptors[0])
        self._is_open = False
        self.reference: Any = None
        # Not at exit: the interpreter ends what is newest first, and closing the envs still needs the pipes.
        weakref.finalize(self, self._signal.close).atexit = False

    @classmethod
    def of(cls, control: Any, pid: int, address: RunAddress) -> StepRun | None:
        """Open the pipes of an actor; None: they cannot be."""
        opened: list[int] = []
        with contextlib.suppress(OSError):
            for number, inode, mode in zip(
                address.descriptors, address.inodes, (os.O_WRONLY, os.O_RDONLY), strict=True
            ):
                path = f"/proc/{pid}/fd/{number}"
                if os.readlink(path) != f"pipe:[{inode}]":
                    break
                opened.append(os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK))
        if len(opened) == 2:
            return cls(control, (opened[0], opened[1]))
        for descriptor in opened:
            os.close(descriptor)
        return None

    def begin(self, call: Callable[[int], Any]) -> Any:
        """Be in a run; gives the reference of its call. ``call``: has the actor begin the run of that number."""
        if self.reference is None or self.tells:
            self.leave()
            self._control[TOLD] = -1
            self._is_open = True  # before the actor knows of it: it has to be ended even if we are interrupted
            self.reference = call(self._control[RUN].item())
        return self.reference

    def ask(self) -> None:
        """Have the actor make the next step."""
        self._control[ASKED] += 1
        self.wake()

    def wake(self) -> None:
        """Have the actor look."""
        with contextlib.suppress(OSError):  # the actor is gone, or we are on our way out
            self._signal.send()

    def leave(self) -> None:
        """Have the run end, so that the actor can do something else."""
        self.reference = None
        if self._is_open:
            self._control[RUN] += 1
            self.wake()
            self._is_open = False

    @property
    def is_answered(self) -> bool:
        """Whether the actor has made the step that it was asked for last."""
        return bool(self._control[MADE] == self._control[ASKED])

    @property
    def tells(self) -> bool:
        """Whether the result of the call, which is then finished, says more about that step."""
        return bool(self._control[TOLD] == self._control[ASKED])

    @property
    def read_fd(self) -> int:
        """Turns readable when there may be an answer."""
        return self._signal.read_fd

    def clear(self) -> None:
        """Take back wake-ups."""
        self._signal.clear()


def wait_for_answers(runs: Mapping[int, StepRun], seconds: float) -> tuple[list[int], bool]:
    """Sleep until one of some actors has answered.

    Args:
        runs: by actor.
        seconds: at most.

    Returns:
        answered: which have.
        look: Ray should be asked whether one of them has died.
    """
    poll = select.poll()
    for run in runs.values():
        poll.register(run.read_fd, select.POLLIN)
    events = dict(poll.poll(poll_milliseconds(min(seconds, _LOOK_SECONDS))))
    woken = {worker: run for worker, run in runs.items() if run.read_fd in events} or runs
    for run in woken.values():
        run.clear()
    hung_up = any(not event & select.POLLIN for event in events.values())
    return [worker for worker, run in woken.items() if run.is_answered], hung_up or not events
