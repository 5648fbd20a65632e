"""The sans-IO core: no await, no clock, no anyio."""
