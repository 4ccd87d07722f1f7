"""The version, which no other module is needed to import."""

__version__ = "0.1.0"
