"""What every kind promises, kept by `command`."""

from executors.conformance import *
from executors.kinds import Command

KIND = Command()
