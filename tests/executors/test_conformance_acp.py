"""What every kind promises, kept by `acp`."""

from support.executor_conformance import *
from support.executor_kinds import Acp

KIND = Acp()
