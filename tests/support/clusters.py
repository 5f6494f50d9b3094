"""The one cluster of a test run: started when first asked for, and shared, for every run has names of its own."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.doc_pages import KIND_PAGES, blocks

DOUBLE = Path(__file__).with_name("cluster_double.py")
PAGE = KIND_PAGES["kubernetes"]


def manifests() -> list[dict[str, Any]]:
    """What the page tells an operator to give to the cluster."""
    return [each for block in blocks(PAGE, "yaml") for each in yaml.safe_load_all(block.text) if each]


def rules() -> list[dict[str, Any]]:
    """What Rota may do, by the page."""
    [role] = [each for each in manifests() if each["kind"] == "Role"]
    found: list[dict[str, Any]] = role["rules"]
    return found


class Cluster:
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-"))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DOUBLE.parents[1]), *sys.path])}
        self._log = self.directory.with_suffix(".log")
        with self._log.open("wb") as log:
            words = [sys.executable, str(DOUBLE), str(self.directory), json.dumps(rules())]
            self.process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.kubeconfig = str(self.directory / "config")
        until = time.monotonic() + 30
        while not Path(self.kubeconfig).exists():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, "the cluster does not start"
            time.sleep(0.01)
        server = yaml.safe_load(Path(self.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
        self.url: str = server

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._log.unlink(missing_ok=True)

    def act(self, what: str, **query: str) -> None:
        request = urllib.request.Request(f"{self.url}/double/{what}?{urllib.parse.urlencode(query)}", method="POST")
        urllib.request.urlopen(request).close()

    def objects(self, run_id: object, kind: str | None = None) -> list[dict[str, Any]]:
        """All that the cluster has of a run."""
        found = self._state()["objects"]
        mine = [each for each in found if each["metadata"].get("labels", {}).get("rota/run") == str(run_id)]
        return [each for each in mine if kind in (None, each["kind"])]

    def requests(self) -> list[str]:
        found: list[str] = self._state()["requests"]
        return found

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/double/objects") as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def refused(self) -> int:
        """How many it turned away because it was down."""
        count: int = self._state()["refused"]
        return count

    def delete(self, kind: str, name: str) -> None:
        """As somebody else would, in the background."""
        prefix = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        address = f"{self.url}{prefix}/namespaces/agents/{kind}/{name}"
        headers = {"Authorization": "Bearer first"}
        urllib.request.urlopen(urllib.request.Request(address, method="DELETE", headers=headers)).close()


@cache
def shared() -> Cluster:
    cluster = Cluster()
    atexit.register(cluster.stop)
    return cluster
