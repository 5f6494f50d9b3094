"""What a Python program or an agent imports to talk to Rota.

from rota.client import Client, Desk

with Client("http://127.0.0.1:7682", token="rota_…") as rota:
    for event in rota.follow(session_id):
        print(event["seq"], event["kind"])

with Desk.here() as desk:           # inside a run
    desk.message("Done.", to="judge")

`AsyncClient` and `AsyncDesk` are the same with `await`. Refusals are the errors of `rota.errors`, by `code`.
"""

from rota.client.blocking import Client, Desk
from rota.client.desk import AsyncDesk
from rota.client.rota import AsyncClient
from rota.client.wire import Unreachable

__all__ = ["AsyncClient", "AsyncDesk", "Client", "Desk", "Unreachable"]
