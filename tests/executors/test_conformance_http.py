"""What every kind promises, kept by `http`."""

from executors.conformance import *
from executors.kinds import Http

KIND = Http()
