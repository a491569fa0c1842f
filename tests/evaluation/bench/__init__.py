"""Tests of `packed_ss.evaluation.bench`."""
