"""A tiny classifier in NumPy, its data, and how a batch is shared among cards of different speed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BATCH", "Card", "Model", "batch_of", "proportional_shares"]

Floats = NDArray[np.float32]

INPUTS, HIDDEN, CLASSES = 64, 128, 16
BATCH = 1024  # samples of a step, of all ranks together
LEARNING_RATE = 0.5


def batch_of(step: int) -> tuple[Floats, NDArray[np.int64]]:
    """Inputs (BATCH x INPUTS) and classes (BATCH) of a step: the same on every rank, labelled by a fixed random projection."""
    teacher = np.random.default_rng(3).standard_normal((INPUTS, CLASSES), np.float32)
    inputs = np.random.default_rng([5, step]).standard_normal((BATCH, INPUTS), np.float32)
    return inputs, np.argmax(inputs @ teacher, axis=1)


class Model:
    """One hidden layer, tanh, softmax. Every rank starts with the same weights."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.weights: Floats = np.zeros((INPUTS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES, np.float32)
        first, _, second, _ = self._parts(self.weights)
        first[:] = random.standard_normal(first.shape, np.float32) / np.sqrt(INPUTS, dtype=np.float32)
        second[:] = random.standard_normal(second.shape, np.float32) / np.sqrt(HIDDEN, dtype=np.float32)

    @staticmethod
    def _parts(flat: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Views of the two layers' matrices and biases in a flat array."""
        ends = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
        first, first_bias, second, second_bias = np.split(flat, ends)
        return first.reshape(INPUTS, HIDDEN), first_bias, second.reshape(HIDDEN, CLASSES), second_bias

    def gradient(self, inputs: Floats, classes: NDArray[np.int64]) -> Floats:
        """Sums over the samples: the gradient of every weight, then the loss as the last element."""
        first, first_bias, second, second_bias = self._parts(self.weights)
        hidden = np.tanh(inputs @ first + first_bias)
        scores = hidden @ second + second_bias
        scores -= scores.max(axis=1, keepdims=True)
        wanted = np.arange(len(classes)), classes
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        into_scores = np.exp(logs)
        into_scores[wanted] -= 1
        into_hidden = (into_scores @ second.T) * (1 - hidden * hidden)
        sums: Floats = np.empty(self.weights.size + 1, np.float32)
        to_first, to_first_bias, to_second, to_second_bias = self._parts(sums[:-1])
        to_first[:] = inputs.T @ into_hidden
        to_first_bias[:] = into_hidden.sum(axis=0)
        to_second[:] = hidden.T @ into_scores
        to_second_bias[:] = into_scores.sum(axis=0)
        sums[-1] = -logs[wanted].sum()
        return sums

    def update(self, sums: Floats) -> float:
        """One step of gradient descent with the sums of all ranks. Returns the mean loss before the step."""
        self.weights -= np.float32(LEARNING_RATE / BATCH) * sums[:-1]
        return float(sums[-1]) / BATCH

    def digest(self) -> int:
        """CRC-32 of the weights' bits."""
        return zlib.crc32(self.weights.data)


@dataclass
class Card:
    """Emulates the speed of a card by time dilation: work on n samples lasts n times ``seconds_per_sample``, mostly asleep.

    ``late`` counts the calls where the work itself took longer, so that the speed was not that of the card.
    """

    seconds_per_sample: float
    late: int = 0

    def gradient(self, model: Model, step: int, begin: int, end: int) -> Floats:
        """:meth:`Model.gradient` of samples [begin, end) of a step's batch, at the speed of the card."""
        finish = time.perf_counter() + (end - begin) * self.seconds_per_sample
        inputs, classes = batch_of(step)
        sums = model.gradient(inputs[begin:end], classes[begin:end])
        rest = finish - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        else:
            self.late += 1
        return sums

    def measure(self, samples: int = 256, rounds: int = 5) -> float:
        """Samples per second, the median of some rounds."""
        seconds = []
        model = Model()
        for step in range(rounds):
            start = time.perf_counter()
            self.gradient(model, step, 0, samples)
            seconds.append(time.perf_counter() - start)
        return samples / float(np.median(seconds))


def proportional_shares(speeds: Sequence[float], total: int = BATCH) -> list[int]:
    """Splits ``total`` samples in proportion to ``speeds`` (samples per second): whole numbers, such that the last card to finish
    finishes as early as possible."""
    whole = sum(speeds)
    shares = [int(total * speed / whole) for speed in speeds]
    for _ in range(total - sum(shares)):
        rank = min(range(len(speeds)), key=lambda rank: (shares[rank] + 1) / speeds[rank])
        shares[rank] += 1
    return shares
