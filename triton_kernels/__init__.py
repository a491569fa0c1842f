"""Triton kernels, imported as packed_ss.triton_kernels."""
