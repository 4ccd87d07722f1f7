"""Interrupts that Python would drop, or die of, or that something else catches.

What is raised in a finalizer or in a callback of the garbage collector is reported and
dropped, a KeyboardInterrupt too. JAX has such a callback, and a program that is mostly
in compiled code comes to few other places where Python looks for signals. What is
raised in a call from compiled code is up to that code.

Of one that leaves an `exec` of text, such as data classes are made with, Python takes
note: at its end it kills itself with SIGINT, whatever the exit status was to be.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

_SOON = 0.01  # seconds, in which Python leaves the callback
_LATER = 1.0  # seconds, in which files are put in order


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """A block that an interrupt leaves, if not at once, then a little later."""
    try:
        with _repeated(), _raised_again():
            yield
    except KeyboardInterrupt:
        exec("")  # the note is thrown away
        raise


@contextlib.contextmanager
def _raised_again() -> Iterator[None]:
    """A block in which a dropped interrupt is raised again, soon and elsewhere."""
    report = sys.unraisablehook
    timers = []

    def interrupt_again(unraisable):
        if unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)
            return
        timers.append(threading.Timer(_SOON, _thread.interrupt_main))
        timers[-1].start()

    sys.unraisablehook = interrupt_again
    try:
        yield
    finally:
        try:
            for timer in timers:
                timer.join()
        finally:
            sys.unraisablehook = report


@contextlib.contextmanager
def _repeated() -> Iterator[None]:
    """A block in which interrupts come again until it is left."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not is_main:
        yield
        return
    timers = []

    def interrupt(number, frame):
        timers.append(threading.Timer(_LATER, _thread.interrupt_main))
        timers[-1].daemon = True
        timers[-1].start()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)
