"""What the runtime costs, as ratios to floors and peers in the same run: `python -m benchmarks NAME`."""
