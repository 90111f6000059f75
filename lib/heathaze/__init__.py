"""heathaze: published density maps with a user-level differential privacy guarantee."""

__version__ = "0.1.0"
