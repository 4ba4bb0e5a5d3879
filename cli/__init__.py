"""Commands of `memra-mlx`; imported as `memra_mlx.cli`."""
