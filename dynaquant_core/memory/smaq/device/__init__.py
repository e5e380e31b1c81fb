"""SmaQ on a CUDA device, by kernels of its own: the same bits as `cpu_path`, in a few launches a tensor."""
