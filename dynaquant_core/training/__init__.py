"""The object a training loop talks to, and what it is made of.

The `Checkpointer` watches optimizer steps, knows when a save is due (schedule), averages gradients shortly
before (gradients), takes the run's state as one tree (capture) and lets the store draft it.  Candidates are
put into the live model and taken out again (trial), without a trace (guard); what is chosen is written by
one background thread (worker).  Restoring checks everything first and then puts it all back (restore).
"""

from __future__ import annotations

from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.gradients import GradientCollector

__all__ = ["Checkpointer", "GradientCollector"]
