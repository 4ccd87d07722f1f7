"""Strided reads and writes of flat buffers."""
