"""Measure one contender: `python -m benchmarks.contenders NAME HOW WORKLOAD` prints one sample as JSON."""

from __future__ import annotations

import sys
from importlib import import_module

import orjson

from benchmarks import measure, measure_more
from benchmarks.workload import Workload

WAYS = {
    "sessions": measure.measure,
    "fill": measure_more.fill,
    "turn": measure_more.measure_turn,
    "many": measure_more.measure_many,
    "idle": measure_more.measure_idle,
}

name, how, workload = sys.argv[1:]
contender = import_module(f"benchmarks.contenders.{name}")
found = measure.run(WAYS[how], contender.open_contender, Workload.from_json(workload))
sys.stdout.buffer.write(orjson.dumps(found))
