"""Benchmarks against a real daemon, each beside its raw operation in the same run: `python -m tests.bench`."""
