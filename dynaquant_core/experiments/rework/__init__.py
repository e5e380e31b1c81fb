"""Kind ``rework``: what a failure costs in iterations, in the set-up of LC-Checkpoint (arXiv 2009.13003).

A run takes a checkpoint every few iterations (`chain`), by a method at one `point`.  It fails at random
iterations, is restored, and trains until its loss is back (`run`).  `buckets` is the paper's look at what
a change's buckets matter; `interval` says how sure a mean is, `entry` what goes into results.json.
"""

from __future__ import annotations
