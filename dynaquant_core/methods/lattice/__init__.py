"""The method ``lattice``: weights on dithered lattices, coded against where the base expects them (ours).

plan (which lattice) -> cells (one byte a weight) -> motion (contexts and aims from the base) -> run_code
(residuals of a run under the cheapest scheme) -> layout; decode goes the same way back.
"""

from dynaquant_core.methods.lattice.method import Lattice

__all__ = ["Lattice"]
