"""At any moment Ctrl-C and SIGTERM end the command in one line, also while Python imports or XLA compiles.

`train.stop.Stop` notes a signal while a network trains, so that the state is saved. Python runs such a handler between
two of its own instructions only, and drops what a handler raises inside a callback of another library. A thread that
the system wakes knows of every signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

PATIENCE = 10.0  # seconds that a compilation may go on after a signal; schedulers kill after 30
COMPILER = os.path.join("jax", "_src", "compiler.py")
AGAIN = 0.5  # seconds that a second Ctrl-C has to end the process as an exception
GOES_ON = "the same command goes on from there"
KEPT = f"what is finished is kept; {GOES_ON}"


def watch() -> None:
    """From now on Ctrl-C ends the process at once, unless `Stop` takes it; and where the process compiles, any signal
    ends it after PATIENCE seconds, a second Ctrl-C sooner. Call it in the main thread."""
    sys.unraisablehook = _unraisable
    signal.signal(signal.SIGINT, lambda number, frame: leave(number))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_follow, args=(reading,), daemon=True).start()


def leave(number: int, doing: str = "") -> NoReturn:
    """End the process as the signal does by itself, with a line. All files are whole at every moment."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress bar hides the cursor
    name = signal.Signals(number).name
    os.write(2, f"stopped by {name}{doing}: {KEPT}\n".encode())
    os._exit(128 + number)


def _follow(reading: int) -> None:
    interrupts, deadline = 0, 0.0
    while True:
        number = os.read(reading, 1)[0]
        if number not in (signal.SIGINT, signal.SIGTERM):
            continue
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            time.sleep(AGAIN)
            leave(number)
        if not deadline:
            deadline = time.monotonic() + PATIENCE
            threading.Thread(target=_wait, args=(number, deadline), daemon=True).start()


def _wait(number: int, deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))
    while not compiling():
        time.sleep(AGAIN)
    leave(number, " while it compiled")


def compiling() -> bool:
    """Whether a thread of this process is inside XLA's compiler."""
    frames: list[FrameType | None] = list(sys._current_frames().values())
    while frames:
        frame = frames.pop()
        if frame and frame.f_code.co_filename.endswith(COMPILER):
            return True
        if frame:
            frames.append(frame.f_back)
    return False


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """One line of what other libraries drop; nothing of Orbax' event loop, which a failed write leaves behind."""
    if "Event loop is closed" not in str(unraisable.exc_value):
        print(f"note: {unraisable.exc_type.__name__} in {unraisable.object}: {unraisable.exc_value}", file=sys.stderr)
