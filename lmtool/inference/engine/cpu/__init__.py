"""The engine on a CPU with kernels of its own: C, compiled at load for the processor at hand, called on tensors."""
