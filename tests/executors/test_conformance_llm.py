"""What every kind promises, kept by `llm`."""

from support.executor_conformance import *
from support.executor_kinds import Llm

KIND = Llm()
