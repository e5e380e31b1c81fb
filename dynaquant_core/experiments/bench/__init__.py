"""`dynaquant bench`: every stage against its floor and against what is on the shelf, in one process.

Only ratios from one run are worth quoting: the floor, the alternative and our stage see the same bytes, the
same machine and the same minute.
"""

from dynaquant_core.experiments.bench.run import run_bench

__all__ = ["run_bench"]
