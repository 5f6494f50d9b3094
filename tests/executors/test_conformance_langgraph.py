"""What every kind promises, kept by `langgraph`."""

from support.executor_conformance import *
from support.executor_kinds import Langgraph

KIND = Langgraph()
