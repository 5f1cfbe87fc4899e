"""Triton kernels for a block of clients on a GPU, and how images and weights lie in memory for them.

Only `layout` is imported without a GPU.
"""
