"""Stores: where sessions live."""
