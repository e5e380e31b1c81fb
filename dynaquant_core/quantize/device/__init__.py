"""The seam's side for CUDA devices that kernels can be compiled for: the bits of the other sides."""
