"""Atari and image preprocessing: configuration, palettes, fused Numba kernels and stand-alone wrappers."""
