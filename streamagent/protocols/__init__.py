"""The protocols between the column (pipeline, run, session, runtime) and what stands beside it."""

from .bus import Bus, Order
from .following import Changes, Excerpt, Followed
from .model import DEFAULT_SETTINGS, Model, ModelSettings
from .run import RunContext, Stage, Tasks
from .store import Store
from .streams import Source, Stream

__all__ = [
    "DEFAULT_SETTINGS",
    "Bus",
    "Changes",
    "Excerpt",
    "Followed",
    "Model",
    "ModelSettings",
    "Order",
    "RunContext",
    "Source",
    "Stage",
    "Store",
    "Stream",
    "Tasks",
]
