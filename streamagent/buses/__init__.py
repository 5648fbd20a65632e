"""Buses: how workers hear at once of what waits."""
