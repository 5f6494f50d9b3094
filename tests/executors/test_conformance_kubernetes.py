"""What every kind promises, kept by `kubernetes`."""

from executors.conformance import *
from executors.kinds import Kubernetes

KIND = Kubernetes()
