"""Tests of Triton kernels."""
