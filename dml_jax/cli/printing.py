r"""What the command line prints.

Names in models, paths and messages of other libraries may contain control characters,
or characters that the output cannot encode. So everything is printed by `print_lines`,
which replaces them by escapes such as \x1b.
"""

import sys
from collections.abc import Iterable
from typing import TextIO


def escaped(text: str) -> str:
    """The text as one line; tabs are kept."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode()
        for c in text
    )


def print_lines(text: str, stream: TextIO | None = None) -> None:
    """Prints text of one or more lines, by default on the standard output."""
    stream = stream or sys.stdout
    if stream is None:  # the shell has closed it
        return
    lines = "\n".join(map(escaped, text.split("\n")))
    encoding = stream.encoding or "utf-8"
    encodable = lines.encode(encoding, "backslashreplace").decode(encoding)
    print(encodable, file=stream, flush=True)


def progress(iterations: Iterable[int], name: str) -> Iterable[int]:
    """The iterations with a progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return iterations
    return tqdm(iterations, desc=name, delay=1, disable=None, leave=False)
