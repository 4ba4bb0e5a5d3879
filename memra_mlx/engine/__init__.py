"""Everything that runs or speaks to an engine process."""
