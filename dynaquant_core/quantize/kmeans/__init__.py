"""Weighted K-means on the buckets of a sketch: solved exactly, or as the paper does (paper sec. 4.3, A.2)."""

from dynaquant_core.quantize.kmeans.exact import Solutions, solve
from dynaquant_core.quantize.kmeans.lloyd import fit
from dynaquant_core.quantize.kmeans.weights import bucket_weights

__all__ = ["Solutions", "bucket_weights", "fit", "solve"]
