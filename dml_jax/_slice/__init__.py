"""Strided slices and their adjoint."""
