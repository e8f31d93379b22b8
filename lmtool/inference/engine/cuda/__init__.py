"""The engine on an NVIDIA GPU: a paged cache, paged attention, fused kernels, decode steps as CUDA graphs."""
