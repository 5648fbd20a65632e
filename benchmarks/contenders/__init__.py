"""The contenders: each module has `open_contender`, and runs in a process of its own."""
