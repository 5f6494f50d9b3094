"""What every kind promises, kept by `acp`."""

from executors.conformance import *
from executors.kinds import Acp

KIND = Acp()
