"""Fakes and checks for tests of agents, stages and stores: scripted models, faults, invariants, leaks, simulation."""

from .checking import check_session as check_session
from .clock import run_in_virtual_time as run_in_virtual_time
from .clock import virtual_time as virtual_time
from .effects import EffectLog as EffectLog
from .evidence import Effect as Effect
from .evidence import Evidence as Evidence
from .evidence import Shown as Shown
from .evidence import Write as Write
from .kills import for_each_kill as for_each_kill
from .leaks import assert_no_leaks as assert_no_leaks
from .points import Crash as Crash
from .points import FaultPoints as FaultPoints
from .points import for_each_point as for_each_point
from .points import point as point
from .scripted import ScriptedModel as ScriptedModel
from .scripted import answer as answer
from .scripted import call as call
from .scripted import calls as calls
from .scripted import text as text
from .simulation import Simulation as Simulation
from .simulation import SimulationFailed as SimulationFailed
from .simulation import simulate as simulate
from .stages import check_stage as check_stage
from .watched import faulty as faulty
from .watched import watched as watched
