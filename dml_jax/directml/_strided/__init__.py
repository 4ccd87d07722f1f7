"""Reads and writes of buffers whose elements lie at strides."""
