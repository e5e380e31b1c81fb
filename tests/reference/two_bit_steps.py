"""Two-bit compression step by step, one number at a time, without the package (MXNet pull request 8662).

Python's floats are rounded to float32 after every operation, which is what float32 arithmetic gives.
"""

from __future__ import annotations

import math
import struct


def single(value):
    """A Python float as float32 has it."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


class Sender:
    """One worker's residual of one tensor."""

    def __init__(self, count, above, below=None):
        self.above = single(above)
        self.below = single(above if below is None else below)
        self.residual = [0.0] * count

    def push(self, gradient):
        """The codes of a gradient as text of 0s and 1s, two an element."""
        codes = ""
        for at, value in enumerate(gradient):
            held = single(self.residual[at] + value)
            if not math.isfinite(held):
                codes += "01"
            elif held >= self.above:
                codes += "11"
                self.residual[at] = single(held - self.above)
            elif held <= -self.below:
                codes += "10"
                self.residual[at] = single(held + self.below)
            else:
                codes += "00"
                self.residual[at] = held
        return codes

    def take_over(self, lost, share):
        """Adds this worker's share of what each value lost when it arrived rounded."""
        self.residual = [
            single(held + single(own * share)) for held, own in zip(self.residual, lost, strict=True)
        ]


def as_bytes(codes):
    """Codes in whole words of 32 bits, the first code in the high bits of the first byte."""
    codes += "0" * (-len(codes) % 32)
    return bytes(int(codes[at : at + 8], 2) for at in range(0, len(codes), 8))


def decoded(codes, sender):
    """What the codes stand for."""
    values = {"00": 0.0, "01": math.nan, "10": -sender.below, "11": sender.above}
    return [values[codes[at : at + 2]] for at in range(0, len(codes), 2)]


def reduced(senders, gradients, reduce="mean"):
    """One step of all workers on one tensor: what every worker receives."""
    received = [decoded(sender.push(own), sender) for sender, own in zip(senders, gradients, strict=True)]
    totals = []
    for values in zip(*received, strict=True):
        total = 0.0
        for value in values:
            total = single(total + value)
        totals.append(single(total / len(senders)) if reduce == "mean" else total)
    return totals
