"""What every kind promises, kept by `kubernetes`."""

from support.executor_conformance import *
from support.executor_kinds import Kubernetes

KIND = Kubernetes()
