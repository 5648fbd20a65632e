"""Fakes and checks for tests of pipelines: scripted peers, fault injection, leak checks."""
