"""Triton kernels, one idea a file, each with the function that launches it.

They have run in Triton's interpreter and on compute capability 9.0, and are compiled for 8.0 and 10.0 in tests.
"""
