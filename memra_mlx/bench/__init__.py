"""`memra-mlx bench`: one set of measurements for this server and for any other that speaks OpenAI's dialect."""
