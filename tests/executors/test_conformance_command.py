"""What every kind promises, kept by `command`."""

from support.executor_conformance import *
from support.executor_kinds import Command

KIND = Command()
