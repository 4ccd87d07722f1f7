"""Reversal of the first elements of each line of an array."""
