"""Measure one contender: `python -m benchmarks.contenders NAME WORKLOAD` prints one sample as JSON."""

from __future__ import annotations

import sys
from importlib import import_module

import orjson

from benchmarks.measure import measure, run
from benchmarks.workload import Workload

name, workload = sys.argv[1:]
contender = import_module(f"benchmarks.contenders.{name}")
sys.stdout.buffer.write(orjson.dumps(run(measure, contender.open_sessions, Workload.from_json(workload))))
