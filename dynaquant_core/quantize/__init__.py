"""From weights to codes (paper sec. 4, A.1, A.2): sketch, scores, partition, K-means, code look-up, decode.

Everything here is a pure function over arrays or tensors.  A sketch counts a tensor's values in buckets of
relative width (`buckets`, `sketch`); thresholds for protection and pruning are quantiles of sketches
(`partition`); K-means runs on the buckets that survive them (`kmeans`); codes are looked up by bucket
(`codebook`, `seam`).  Tensors stay on their device behind one `seam`.  `blocks` is the 8-bit code of
optimizer moments.
"""

from dynaquant_core.quantize.buckets import BitBuckets, Buckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup, table
from dynaquant_core.quantize.cut import NO_CUT, PROTECTED, PRUNED, Cut
from dynaquant_core.quantize.layers import layer_type, layer_types
from dynaquant_core.quantize.partition import cuts
from dynaquant_core.quantize.seam import assign, gather, histogram, score_histogram, tally
from dynaquant_core.quantize.sketch import Sketch
from dynaquant_core.quantize.tally import Tally

__all__ = [
    "NO_CUT",
    "PROTECTED",
    "PRUNED",
    "BitBuckets",
    "Buckets",
    "Cut",
    "LogBuckets",
    "Sketch",
    "Tally",
    "assign",
    "cuts",
    "gather",
    "histogram",
    "layer_type",
    "layer_types",
    "lookup",
    "score_histogram",
    "table",
    "tally",
]
