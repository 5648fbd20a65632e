"""Run LLM agent sessions as streams."""
