"""What every kind promises, kept by `python`."""

from executors.conformance import *
from executors.kinds import Python

KIND = Python()
