"""What every kind promises, kept by `python`."""

from support.executor_conformance import *
from support.executor_kinds import Python

KIND = Python()
