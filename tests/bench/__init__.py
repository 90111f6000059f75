"""Benchmarks: each prints both sides of its comparison, measured in one run."""
