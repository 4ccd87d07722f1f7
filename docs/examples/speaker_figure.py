"""The figure of `speaker_recognition.py`: learning curves and a confusion matrix."""

import os
from pathlib import Path

import numpy as np
from japanese_vowels import SPEAKERS
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def draw_curves(axes: Axes, accuracies: dict[str, np.ndarray]) -> None:
    """Draws the mean over the seeds and a band from the worst to the best."""
    # Three colours of Okabe and Ito and three dashes, distinct in black and white too.
    styles = [("#E69F00", ":"), ("#D55E00", "--"), ("#0072B2", "-")]
    for (name, accuracy), (colour, dash) in zip(
        accuracies.items(), styles, strict=True
    ):
        per_cent = 100 * accuracy
        epochs = np.arange(1, len(accuracy) + 1)
        axes.plot(epochs, per_cent.mean(axis=1), dash, color=colour, label=name)
        axes.fill_between(
            epochs,
            per_cent.min(axis=1),
            per_cent.max(axis=1),
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set(
        title="Learning curves (mean and range over the seeds)",
        xlabel="epoch",
        ylabel="test accuracy (%)",
        ylim=(85, 100),
    )
    axes.margins(x=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def draw_confusion(
    axes: Axes, variant: str, predicted: np.ndarray, speakers: np.ndarray
) -> None:
    """Draws how often each speaker is taken for which, over all seeds."""
    confusion = np.zeros((SPEAKERS, SPEAKERS))
    np.add.at(confusion, (np.broadcast_to(speakers, predicted.shape), predicted), 1)
    confusion *= 100 / confusion.sum(axis=1, keepdims=True)
    image = axes.imshow(confusion, cmap="Blues", vmin=0, vmax=100)
    for (row, column), share in np.ndenumerate(confusion):
        if share > 0:
            colour = "white" if share > 50 else "black"
            text = f"{share:.1f}"
            axes.text(column, row, text, color=colour, ha="center", va="center")
    numbers = np.arange(SPEAKERS)
    axes.set_xticks(numbers, numbers + 1)
    axes.set_yticks(numbers, numbers + 1)
    axes.set(
        title=f"Confusion, {variant}",
        xlabel="recognised speaker",
        ylabel="true speaker",
    )
    axes.figure.colorbar(image, ax=axes, label="share of the speaker's utterances (%)")


def save_figure(figure: Figure, output: Path) -> None:
    """Writes under a temporary name first: the output is whole or not there."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        figure.savefig(unfinished, format="png", dpi=150)
        os.replace(unfinished, output)
    finally:
        unfinished.unlink(missing_ok=True)
