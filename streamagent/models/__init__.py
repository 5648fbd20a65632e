"""Models: everything that turns a context into an answer."""
