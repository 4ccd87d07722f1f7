"""Fresh processes, and work in child processes, which compilers may end.

A child answers items, one after the other: lines of JSON from its standard input to its
standard output. Where it ends, another one continues with the rest.
"""

import faulthandler
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


def printed_by(*lines: str) -> str:
    """What a fresh process prints that runs these lines."""
    child = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_JIT": "0"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


class End(NamedTuple):
    """The answer to an item at which a child has ended."""

    is_late: bool
    why: str


def answers(
    script: Any, items: Sequence[Any], *arguments: str, **environment: str
) -> Iterator[Any]:
    """What the children say about each item, or an `End`."""
    rest = list(items)
    while rest:
        child = subprocess.run(
            [sys.executable, script, *arguments],
            input="\n".join(map(json.dumps, rest)),
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "JAX_DEBUG_NANS": "0",  # NaNs are data
                "PYTHONPATH": os.pathsep.join(sys.path),
                **environment,
            },
            capture_output=True,
            text=True,
        )
        lines = child.stdout.splitlines()
        yield from map(json.loads, lines)
        rest = rest[len(lines) :]
        if rest:
            yield _end(child)
            rest.pop(0)


def _end(child: subprocess.CompletedProcess[str]) -> End:
    late = re.search(r"^Timeout \(.*\)!$", child.stderr, re.MULTILINE)
    if late:
        return End(True, late[0])
    if child.returncode >= 0:
        raise RuntimeError(f"a child process failed:\n{child.stderr[-4000:]}")
    fatal = re.search(r"^F\d{4} .*|^.*Check failed.*", child.stderr, re.MULTILINE)
    return End(False, fatal[0] if fatal else f"signal {-child.returncode}")


def serve(answer: Callable[[Any], Any], seconds: float) -> None:
    """The child's part: answers every item, or ends after so many seconds."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what libraries print
        for line in sys.stdin:
            faulthandler.dump_traceback_later(seconds, exit=True)
            print(json.dumps(answer(json.loads(line))), file=output, flush=True)
            faulthandler.cancel_dump_traceback_later()
