"""Progress of a run: a live bar on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from .health import Health


@dataclass(frozen=True)
class ProgressFigures:
    """What the display shows.

    Attributes:
        env_steps: env steps of all environments together.
        seconds: since the run began, earlier parts of a resumed run included.
        steps_per_second: env steps per second in this part of the run.
        episodes: episodes that have ended.
        mean_return: mean unclipped return of the last episodes; None where none has ended.
    """

    env_steps: int
    seconds: float
    steps_per_second: float
    episodes: int
    mean_return: float | None

    def __str__(self) -> str:
        """One line."""
        mean_return = "-" if self.mean_return is None else f"{self.mean_return:.1f}"
        return (
            f"{self.seconds:6.0f} s  {self.env_steps:>9,} steps  {self.steps_per_second:>7,.0f} steps/s  "
            f"{self.episodes:>5} episodes  return {mean_return}"
        )


def quiet_console() -> Console:
    """A console that prints nothing."""
    return Console(quiet=True)


class ProgressDisplay:
    """Shows :class:`ProgressFigures` as they come; use it as a context manager."""

    SECONDS_BETWEEN_LINES = 5.0
    SECONDS_BETWEEN_HEALTH_LINES = 60.0

    def __init__(self, total_steps: int, solve_at: float | None, console: Console | None = None) -> None:
        """Show progress towards ``total_steps`` and, where there is one, the target return ``solve_at``."""
        self._console = console or Console()
        self._target = "" if solve_at is None else f" of {solve_at:g}"
        self._last_line = -float("inf")
        self._last_health = time.monotonic()
        self._health: Health | None = None
        self._bar: Progress | None = None
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
        if self._console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=24),
                TextColumn("{task.completed:,}/{task.total:,} steps"),
                TextColumn("{task.fields[rate]:,.0f} steps/s"),
                TextColumn("[bold]return {task.fields[mean_return]}[/bold]"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=total_steps, rate=0.0, mean_return="-")

    def __enter__(self) -> ProgressDisplay:
        """Start the live bar."""
        if self._bar is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last state of the bar on the screen."""
        if self._bar is not None:
            self._live.stop()

    def _render(self) -> RenderableType:
        """The bar, and the panel under it once there is something to say."""
        parts: list[RenderableType] = [] if self._bar is None else [self._bar]
        if self._health is not None:
            text = Text("\n".join(str(self._health).split("; ")))
            parts.append(Panel(text, title="health", expand=False))
        return Group(*parts)

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def show_health(self, health: Health) -> None:
        """Show the health of workers and memory: under the bar, or as a line every minute off a terminal."""
        if self._bar is not None:
            self._health = health
        elif time.monotonic() - self._last_health >= self.SECONDS_BETWEEN_HEALTH_LINES or health.has_losses:
            self._last_health = time.monotonic()
            self.say(str(health))

    def update(self, figures: ProgressFigures, *, is_last: bool = False) -> None:
        """Show new figures; off a terminal, only every few seconds and at the end."""
        if self._bar is not None:
            mean_return = "-" if figures.mean_return is None else f"{figures.mean_return:.1f}{self._target}"
            self._bar.update(
                self._task, completed=figures.env_steps, rate=figures.steps_per_second, mean_return=mean_return
            )
        elif is_last or time.monotonic() - self._last_line >= self.SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.say(str(figures) + self._target)
