"""Benchmarks: load, requests' timings, contests between engines, cards, comparisons."""
