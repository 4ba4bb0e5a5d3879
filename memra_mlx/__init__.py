"""memra-mlx: a local model server for coding agents on Apple Silicon."""

__version__ = "0.1.0"
