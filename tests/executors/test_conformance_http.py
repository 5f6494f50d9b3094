"""What every kind promises, kept by `http`."""

from support.executor_conformance import *
from support.executor_kinds import Http

KIND = Http()
