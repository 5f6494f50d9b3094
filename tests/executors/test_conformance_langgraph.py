"""What every kind promises, kept by `langgraph`."""

from executors.conformance import *
from executors.kinds import Langgraph

KIND = Langgraph()
