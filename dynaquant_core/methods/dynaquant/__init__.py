"""The method ``dynaquant``: prune, protect, quantise non-uniformly, code against the base (paper sec. 4-6).

The stages, in the paper's order: `survey` sketches the tensors (4.2, A.1), `quantize.partition` draws the
thresholds (4.2), `book` fits a codebook on the sketch (4.3, A.2), `draft` assigns codes, `layout` and the
coders of `coding` and `delta` turn them into streams (6).  `held` is what a reader keeps.
"""

from dynaquant_core.methods.dynaquant.method import DynaQuant

__all__ = ["DynaQuant"]
