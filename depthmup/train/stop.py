"""A request to stop: Ctrl-C, or the SIGTERM of a scheduler that takes the machine back."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from depthmup.interrupt import GOES_ON

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While this context is open, a signal does not end the process: it is noted as a request to stop.

    The training loop looks for a request after each stretch of steps. A second Ctrl-C ends the process at once.

    requested: the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # Python allows no handlers elsewhere
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, where: str) -> None:
        """Raises Stopped if there is a request. where: in the training, which keeps what is finished."""
        if self.requested:
            raise Stopped(self.requested, f"{where}: {GOES_ON}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = self.requested or signal.Signals(number)


class Stopped(Exception):
    """The run has stopped on request. The message says what is kept.

    requested: the signal; None if another process got it.
    """

    def __init__(self, requested: signal.Signals | None, kept: str) -> None:
        self.signal = requested or signal.SIGTERM
        super().__init__(f"stopped by {self.signal.name} {kept}")

    @classmethod
    def at(cls, requested: signal.Signals | None, step: int, saved: bool) -> Stopped:
        """The exception for a stop after a step. saved: whether a checkpoint of this step exists."""
        kept = f"saved, {GOES_ON}" if saved else "these steps are not saved"
        return cls(requested, f"at step {step}: {kept}")
