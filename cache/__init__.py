"""What outlives a request: KV state and transcripts; imported as `memra_mlx.cache`."""
