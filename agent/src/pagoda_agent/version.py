"""The version, which is that of the Pagoda that it comes with."""

__version__ = "0.1.0"
