"""The contenders: each module has `open_sessions`, and runs in a process of its own."""
