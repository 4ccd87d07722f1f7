"""Draws where every element of an operator's result comes from.

python docs/pictures.py writes the SVG files in docs/images/operators and .../layouts.
What is drawn is computed by `dml_jax.reference`, of arrays that hold the positions of
their own elements: an element has the colour of the one that it was copied from.
"""

import pathlib
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from dml_jax import reference

FOLDER = pathlib.Path(__file__).parent / "images"
GREY = "#80868f"  # is read on white and on black
LINES = (  # a light and a dark end for every line of an array
    ("#d5e5fb", "#5b9bef"),
    ("#ffe3c7", "#f2953c"),
    ("#d3f0d9", "#4fbb6b"),
    ("#eadcf8", "#a877e0"),
)
RED = "#e0476b"


def main():
    """Draws all pictures, in the same bytes every time."""
    matplotlib.rcParams["svg.hashsalt"] = "dml_jax"
    operators = (
        bidirectional_scan,
        reverse_padded,
        reverse_subsequences,
        reverse_sequence,
        slice,
        slice1,
        slice_grad,
        fill_value_sequence,
        fill_value_constant,
        checked,
    )
    layouts = rows, features, time_major, flat, columns
    for folder, pictures in (("operators", operators), ("layouts", layouts)):
        for draw in pictures:
            save(draw, FOLDER / folder / f"{draw.__name__}.svg")


def save(draw, path):
    """Writes what a function draws, which returns its width and height."""
    figure, axes = plt.subplots()
    width, height = draw(axes)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal", position=(0, 0, 1, 1))
    axes.axis("off")
    figure.set_size_inches(width * 0.42, height * 0.42)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    # matplotlib writes a line for each point of an outline.
    path.write_text(re.sub(r' ?\n(?=["A-Za-z])', " ", path.read_text()))


def bidirectional_scan(axes):
    """A batch, and the order in which each cell reads it; padding is not read."""
    x, lengths = np.arange(12).reshape(3, 4), np.array([[3], [4], [1]])
    backwards = reference.reverse_subsequences(x, lengths, 1)
    titles = "x [batch, time]", "forward cell reads", "backward cell reads"
    for left, array, name in zip(
        (0.2, 6.2, 11.6), (x, x, backwards), titles, strict=True
    ):
        text(axes, left + 2, 0.5, name)
        cells(axes, left, 1, array, shades(x.shape, lengths))
    mark_lengths(axes, 0.2, lengths)
    arrow(axes, (4.4, 2.5), (6, 2.5))
    arrow(axes, (6.2, 4.4), (10.2, 4.4), strong=False)
    arrow(axes, (11.6, 4.4), (15.6, 4.4), strong=False)
    return 15.8, 4.9


def reverse_padded(axes):
    """Every row is a sequence of the batch, and a line marks its end."""
    x, lengths = np.arange(12).reshape(3, 4), np.array([[3], [4], [1]])
    y = reference.reverse_subsequences(x, lengths, 1)
    for left, array, name in ((1.4, x, "x [batch, time]"), (8.4, y, "result")):
        text(axes, left + 2, 0.5, name)
        cells(axes, left, 1, array, shades(x.shape, lengths))
        mark_lengths(axes, left, lengths)
    arrow(axes, (5.8, 2.5), (7.8, 2.5))
    return 13.2, 4.9


def mark_lengths(axes, left, lengths):
    """A bar where each row ends, and the word at the last one."""
    for row, n in enumerate(lengths[:, 0]):
        axes.plot([left + n] * 2, [row + 1.08, row + 1.92], color=RED, lw=3)
    text(axes, left + n, 4.4, f"length {n}", color=RED)


def reverse_subsequences(axes):
    """One length for every line: each with its elements above and its result below."""
    x = np.arange(12).reshape(3, 4)
    lengths = np.array([[2], [4], [3]])
    y = reference.reverse_subsequences(x, lengths, 1)
    hues = shades(x.shape, lengths)
    text(axes, 1.3, 1.5, "x", align="right")
    text(axes, 1.3, 4.5, "y", align="right")
    for line, n in enumerate(lengths[:, 0]):
        left = 1.6 + 5 * line
        text(axes, left + 2, 0.5, f"length {n}")
        cells(axes, left, 1, x[line : line + 1], hues)
        cells(axes, left, 4, y[line : line + 1], hues)
        for k, source in enumerate(y[line] % 4):
            arrow(axes, (left + source + 0.5, 2.1), (left + k + 0.5, 3.9), k < n)
    return 16.2, 5.4


def reverse_sequence(axes):
    """Time runs downwards, and every column is a sequence of the batch."""
    x = np.arange(12).reshape(4, 3)
    lengths = np.array([4, 3, 1])
    y = reference.reverse_sequence(x, lengths)
    hues = shades(x.shape, lengths[None], axis=0)
    for left, array, name in ((1.4, x, "input [time, batch]"), (8.4, y, "result")):
        text(axes, left + 1.5, 0.5, name)
        cells(axes, left, 1, array, hues)
        for b, n in enumerate(lengths):
            axes.plot(
                *([left + b + 0.08, left + b + 0.92], [1 + n, 1 + n]), color=RED, lw=3
            )
    text(axes, 0.9, 3, "time", rotation=90)
    text(axes, 4.6, 2, "length 1", align="left", color=RED)
    arrow(axes, (5.2, 3), (7.6, 3))
    return 11.8, 5.4


def slice(axes):
    """A 4 by 4 array, of which two rows and two columns are read."""
    x = np.arange(16).reshape(4, 4)
    y = reference.slice(x, (1, 0), (2, 2), (2, 3))
    cut(axes, x, y, "offsets (1, 0)", "strides (2, 3)")
    return 11.8, 6


def slice1(axes):
    """The same array, and a window that is read from its last row on."""
    x = np.arange(16).reshape(4, 4)
    y = reference.slice1(x, (0, 1), (4, 3), (-2, 2))
    cut(axes, x, y, "window (4, 3) at (0, 1)", "strides (-2, 2)")
    window(axes, 1.4 + 1, 1, 3, 4)
    return 11.8, 6


def slice_grad(axes):
    """The gradient of a slice1, put back into the window that was read."""
    g = np.arange(1, 5).reshape(2, 2)
    y = reference.slice_grad(g, (4, 4), (0, 0), (3, 4), (2, -2))
    hues = {0: None, **dict(zip(g.ravel(), shades(g.shape).values(), strict=True))}
    text(axes, 2.4, 1.5, "gradient")
    cells(axes, 1.4, 2, g, hues)
    text(axes, 9.4, 0.5, "result")
    cells(axes, 7.4, 1, y, hues)
    window(axes, 7.4, 1, 4, 3)
    arrow(axes, (4.2, 3), (6.6, 3))
    text(axes, 2.9, 5.5, "strides (2, -2)")
    text(axes, 9.4, 5.5, "window (3, 4) at (0, 0)")
    return 12.8, 6


def fill_value_sequence(axes):
    """Positions in row-major order, and the bytes that stand there."""
    sizes, start, delta = (2, 4), 3, -2
    k = np.arange(8).reshape(sizes)
    y = reference.fill_value_sequence(sizes, np.uint8, start, delta)
    hues = shades((1, 8))
    text(axes, 2.9, 0.5, "k")
    cells(axes, 0.9, 1, k, hues)
    arrow(axes, (5.4, 2), (7.8, 2))
    text(axes, 6.6, 1.4, "3 - 2 k")
    text(axes, 10.6, 0.5, "uint8")
    cells(
        axes, 8.3, 1, y, {v: hues[i] for i, v in zip(k.flat, y.flat, strict=True)}, 1.15
    )
    return 13.6, 3.4


def fill_value_constant(axes):
    """One value, and a copy of it everywhere."""
    y = reference.fill_value_constant((2, 4), np.dtype(np.int32), 13)
    hues = {13: LINES[0][1]}
    text(axes, 1.9, 0.5, "value")
    cells(axes, 1.4, 1.5, np.array([[13]]), hues)
    arrow(axes, (3, 2), (5.4, 2))
    text(axes, 7.9, 0.5, "sizes (2, 4)")
    cells(axes, 5.9, 1, y, hues)
    return 10.9, 3.4


def checked(axes):
    """Lengths from below 0 to beyond the axis, and what becomes of a line of three."""
    x = np.arange(3)[None]
    text(axes, 1.5, 0.5, "length")
    text(axes, 4.4, 0.5, "result")
    text(axes, 6.9, 0.5, "checked", align="left")
    for row, n in enumerate((-1, 0, 1, 2, 3, 4)):
        y = reference.reverse_subsequences(x, np.array([[n]]), 1)
        top = 1 + 1.2 * row
        text(axes, 1.5, top + 0.5, str(n))
        cells(axes, 2.9, top, y, shades(x.shape, np.array([[n]])))
        inside = 0 <= n <= 3
        words, colour = ("passes", GREY) if inside else ("ValueError", RED)
        text(axes, 6.9, top + 0.5, words, align="left", color=colour)
    return 10.4, 8.4


# Layouts: what a reversal returns, in the order of memory: from left to right, and then
# from above. Numbers are the steps that elements come from; an arrow is along time.


def rows(axes):
    """[batch, time]: a sequence is a row."""
    sequence, step = np.indices((2, 4))
    return reversed_steps(axes, 0.2, 0.8, step, sequence, [3, 2])


def features(axes):
    """[batch, time, features]: a step is a few neighbours of a row."""
    sequence, step, _ = np.indices((2, 4, 2)).reshape(3, 2, 8)
    return reversed_steps(axes, 0.2, 0.8, step, sequence, [3, 2])


def time_major(axes):
    """[time, batch, features]: a step of a sequence is a part of a row."""
    step, sequence, _ = np.indices((4, 2, 2)).reshape(3, 4, 4)
    return reversed_steps(axes, 0.8, 0.2, step, sequence, [3, 2])


def flat(axes):
    """[time, batch]: a sequence is a column."""
    step, sequence = np.indices((4, 3))
    return reversed_steps(axes, 0.8, 0.2, step, sequence, [3, 2, 4])


def columns(axes):
    """[batch, heads, time, features]: every column of a block has its own length."""
    step, sequence = np.indices((4, 3))
    right, _ = reversed_steps(axes, 0.8, 0.2, step, sequence, [3, 2, 4])
    return reversed_steps(axes, right + 0.8, 0.2, step, sequence, [2, 4, 3])


def reversed_steps(axes, left, top, step, sequence, lengths):
    """A grid, given the step and the sequence of each element; its right and bottom."""
    steps = np.indices((step.max() + 1, len(lengths)))[0]
    reversed_sequences = reference.reverse_sequence(steps, np.array(lengths))
    for (row, column), s in np.ndenumerate(sequence):
        t = step[row, column]
        low, high = (np.array(matplotlib.colors.to_rgb(end)) for end in LINES[s])
        source = reversed_sequences[t, s]
        hue = tuple(low + source / step.max() * (high - low))
        shown = {source: hue if t < lengths[s] else None}
        cells(axes, left + column, top + row, np.array([[source]]), shown)
    height, width = step.shape
    tail, head = (left, top - 0.3), (left + width, top - 0.3)
    if step[0, -1] == 0:  # time runs downwards
        tail, head = (left - 0.3, top), (left - 0.3, top + height)
    arrow(axes, tail, head, strong=False)
    return left + width + 0.2, top + height + 0.2


def cut(axes, x, y, left, right):
    """An array in which the elements that were read have colours, and the result."""
    read = iter(shades(y.shape).values())
    hues = {v: next(read) if v in y else None for v in sorted(x.flat, key=order(y))}
    text(axes, 3.4, 0.5, "input")
    cells(axes, 1.4, 1, x, hues)
    arrow(axes, (5.8, 3), (7.8, 3))
    text(axes, 9.4, 1.5, "result")
    cells(axes, 8.4, 2, y, hues)
    text(axes, 3.4, 5.5, left)
    text(axes, 9.4, 5.5, right)


def order(y):
    """A key that sorts what was read in the order of the result."""
    place = {v: i for i, v in enumerate(y.flat)}
    return lambda v: place.get(v, len(place))


def shades(shape, lengths=None, axis=1):
    """A colour for every element: a hue for its line, darker along the axis.

    Padding, behind the lengths, has none.
    """
    lengths = np.broadcast_to(shape[axis] if lengths is None else lengths, shape)
    colours = {}
    for element, where in enumerate(np.ndindex(shape)):
        low, high = (
            np.array(matplotlib.colors.to_rgb(end)) for end in LINES[where[1 - axis]]
        )
        part = where[axis] / max(shape[axis] - 1, 1)
        is_padding = where[axis] >= lengths[where]
        colours[element] = None if is_padding else tuple(low + part * (high - low))
    return colours


def cells(axes, left, top, array, hues, width=1.0):
    """A grid of the elements of an array of rank 2."""
    for (row, column), value in np.ndenumerate(array):
        hue = hues[value]
        corner = left + column * width + 0.06, top + row + 0.06
        axes.add_patch(
            matplotlib.patches.FancyBboxPatch(
                corner,
                *(width - 0.12, 0.88),
                boxstyle="round,pad=0,rounding_size=0.12",
                facecolor=hue or "none",
                edgecolor="none" if hue else (*matplotlib.colors.to_rgb(GREY), 0.5),
            )
        )
        x, y = left + (column + 0.5) * width, top + row + 0.5
        text(axes, x, y, str(value), color="#1d2430" if hue else GREY)


def window(axes, left, top, width, height):
    """A frame around the elements of a window."""
    axes.add_patch(
        matplotlib.patches.Rectangle(
            (left, top), width, height, fill=False, edgecolor=RED, lw=1.8, ls="--"
        )
    )


def arrow(axes, tail, head, strong=True):
    """From a source to where it goes."""
    style = {"color": GREY, "lw": 1.8 if strong else 1, "shrinkA": 0, "shrinkB": 0}
    style["arrowstyle"] = "-|>,head_width=0.22,head_length=0.45"
    axes.annotate("", head, tail, arrowprops=style)


def text(axes, x, y, words, align="center", color=GREY, rotation=0):
    """Words that are centred vertically."""
    style = {"ha": align, "va": "center_baseline", "color": color, "rotation": rotation}
    axes.text(x, y, words.replace("-", "\N{MINUS SIGN}"), fontsize=12, **style)


if __name__ == "__main__":
    main()
