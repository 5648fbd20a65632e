"""`python -m streamagent.cli`."""

from . import app

app(prog_name="streamagent")
