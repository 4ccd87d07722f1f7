"""Interrupts that Python would drop, or die of.

What is raised in a finalizer or in a callback of the garbage collector is reported and
dropped, a KeyboardInterrupt too. JAX has such a callback, and a program that is mostly
in compiled code comes to few other places where Python looks for signals.

Of one that leaves an `exec` of text, such as data classes are made with, Python takes
note: at its end it kills itself with SIGINT, whatever the exit status was to be.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Iterator

_SOON = 0.01  # seconds, in which Python leaves the callback


@contextlib.contextmanager
def kept() -> Iterator[None]:
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
        try:
            yield
        finally:
            for timer in timers:
                timer.join()
    except KeyboardInterrupt:
        exec("")  # the note is thrown away
        raise
    finally:
        sys.unraisablehook = report
