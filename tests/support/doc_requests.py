"""Requests as the reference writes them: a method, and an address within the workspace."""

from typing import Any

from httpx import AsyncClient

from support.waiting import until

API = "http://rota.test/api/v1/workspaces/default"


class Api:
    def __init__(self, client: AsyncClient, token: str) -> None:
        self._client, self._headers = client, {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._client.request(method, API + path, json=body, headers=self._headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def ended(self, run_id: str) -> dict[str, Any]:
        """A run, once it has ended."""

        async def ended() -> dict[str, Any] | None:
            run: dict[str, Any] = await self.ask("GET", f"/runs/{run_id}")
            return run if run["finished_at"] else None

        run = await until(ended, within=30)
        assert run
        return run

    async def said(self, run: dict[str, Any]) -> str:
        """What the agent said in this run."""
        events = await self.ask("GET", f"/sessions/{run['session_id']}/events?limit=100")
        spoken = [each for each in events["items"] if each["kind"] == "output" and each["run_id"] == run["id"]]
        return "".join(each["data"]["text"] for each in spoken)
