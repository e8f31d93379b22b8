"""Triton kernels, one idea a file, each with the function that launches it.

They have run in Triton's interpreter, been compiled for compute capability 8.0, 9.0 and 10.0, and not run on a GPU yet.
"""
