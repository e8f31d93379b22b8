"""Tests of GPU code; they need torch, transformers, Triton, NumPy and pytest, see pytest.ini."""
