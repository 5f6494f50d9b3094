"""What every kind promises, kept by `llm`."""

from executors.conformance import *
from executors.kinds import Llm

KIND = Llm()
