"""`python -m rota` is the same program as `rota`."""

import subprocess
import sys

from rota import __version__


def test_python_m_rota_is_the_command_line() -> None:
    told = subprocess.run([sys.executable, "-m", "rota", "--version"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (0, f"rota, version {__version__}\n"), told.stderr
