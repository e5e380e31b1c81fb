"""Kind ``system``: a training under SmaQ, SAMO or two-bit gradients, beside the same training without.

`base` is what a system does in a run, `activations`, `pruning` and `gradients` are the systems, `registry`
finds one for its section, `run` trains and measures, `entry` says what it came to.
"""

from __future__ import annotations
