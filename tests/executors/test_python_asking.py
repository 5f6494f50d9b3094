"""Python agents that ask: in their process, or parked, with a checkpoint and an answer to go on from."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from rota.errors import TooLarge
from rota.executors.python import MOST_WAITING, PythonExecutor
from rota.model.approval import Answer, Option
from rota.model.executor import Assignment
from rota.model.ids import ApprovalId, UserId, new_id
from rota.model.outcome import ErrorClass, Failed, Outcome, Parked, Succeeded
from support.stand_ins import RecordingDesk, until

USER = UserId(new_id())


def said(approved: bool, text: str | None = None) -> Answer:
    return Answer(ApprovalId(new_id()), "approve" if approved else "refuse", approved, text, USER)


@pytest.fixture
def run(tmp_path: Path, desk: RecordingDesk, assign: Callable[..., Assignment], grace: timedelta) -> Any:
    """Run a body as an agent, `async` unless told otherwise."""

    async def executed(body: str, *, function: str = "async def", **given: Any) -> Outcome:
        code = indent(dedent(body), "    ")
        imports = "import json\nfrom rota.agent import Answer, NotApproved, Option"
        (tmp_path / "asking.py").write_text(f"{imports}\n\n{function} agent(context):\n{code}\n")
        config = {"function": "asking:agent", "path": str(tmp_path)}
        return await PythonExecutor(grace=grace).execute(assign(config, **given), desk)

    return executed


async def test_an_agent_waits_in_its_process_and_goes_on_with_the_answer(run: Any, desk: RecordingDesk) -> None:
    body = """
        answer = await context.ask(
            "Send it?", key="send", detail={"to": "all"},
            options=[Option("yes", "Yes", approves=True), Option("no", "No", approves=False)])
        return f"{answer.option_id} {answer.approved} {bool(answer)} {answer.text} {answer.answered_by}"
    """
    running = asyncio.create_task(run(body))
    await until(lambda: desk.events, "it has asked")
    options = [Option("yes", "Yes", True), Option("no", "No", False)]
    assert desk.events == [("ask", "Send it?", {"options": options, "detail": {"to": "all"}, "key": "send"})]
    desk.answers.put_nowait(said(False, "Later."))
    assert await running == Succeeded(f"refuse False False Later. {USER}")


async def test_what_an_agent_says_while_it_waits_is_heard(run: Any, desk: RecordingDesk) -> None:
    body = """
        asked = context.ask("Send it?")
        await context.checkpoint(b"asked")
        context.say("Meanwhile.")
        await asked
    """
    running = asyncio.create_task(run(body))
    await until(lambda: desk.text == "Meanwhile.", "it was heard")
    desk.answers.put_nowait(said(True))
    assert isinstance(await running, Succeeded)


async def test_a_function_without_an_event_loop_asks_too(run: Any, desk: RecordingDesk) -> None:
    desk.answers.put_nowait(said(True))
    assert await run('return str(context.ask("Send it?").result().approved)', function="def") == Succeeded("True")


async def test_an_agent_is_parked_and_its_process_ends_in_order(run: Any, desk: RecordingDesk) -> None:
    body = """
        try:
            context.checkpoint(bytes(range(256)))
            await context.park("Send it?", key="send")
            context.say("Never said.")
        except Exception:
            context.say("Never caught.")
        finally:
            context.say("Tidied up.")
    """
    outcome = await run(body)
    assert isinstance(outcome, Parked)
    assert desk.text == "Tidied up."
    assert [call[0] for call in desk.events] == ["checkpoint", "park"]
    assert desk.events[0][1] == bytes(range(256))


async def test_a_parked_agent_goes_on_with_its_checkpoint_and_the_answer(run: Any, desk: RecordingDesk) -> None:
    body = """
        assert context.last_checkpoint == b"half"
        return f"{context.resumed_with.option_id}: {context.resumed_with.text}"
    """
    assert await run(body, checkpoint=b"half", answer=said(True, "Go.")) == Succeeded("approve: Go.")


async def test_asking_again_gives_the_answer_at_once(run: Any, desk: RecordingDesk) -> None:
    desk.answers.put_nowait(said(False))
    assert await run('return str((await context.park("Send it?", key="send")).approved)') == Succeeded("False")


@pytest.mark.parametrize("verb", ["ask", "park"])
async def test_a_refusal_that_the_agent_cannot_do_without_fails_its_run(
    run: Any, desk: RecordingDesk, verb: str
) -> None:
    desk.answers.put_nowait(said(False, "Too dear."))
    outcome = await run(f'(await context.{verb}("Send it?")).required()')
    assert outcome == Failed(ErrorClass.APPROVAL_REFUSED, "Too dear.", retryable=False)


async def test_an_agent_may_find_another_way_after_a_refusal(run: Any, desk: RecordingDesk) -> None:
    desk.answers.put_nowait(said(False))
    body = """
        try:
            (await context.ask("Send it?")).required()
        except NotApproved:
            return "Kept it."
    """
    assert await run(body) == Succeeded("Kept it.")


async def test_what_the_desk_refuses_is_told_to_the_agent(
    run: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(data: bytes) -> None:
        raise TooLarge("That is too much.")

    monkeypatch.setattr(desk, "checkpoint", refuse)
    body = """
        try:
            await context.checkpoint(b"x")
        except RuntimeError as refusal:
            return str(refusal)
    """
    assert await run(body) == Succeeded("That is too much.")


async def test_an_agent_may_wait_for_many_answers_but_not_for_any_number(run: Any, desk: RecordingDesk) -> None:
    body = f"""
        asked = [context.ask("Send it?") for _ in range({MOST_WAITING + 1})]
        try:
            await asked.pop()
        except RuntimeError as refusal:
            context.say(str(refusal))
        return str(all([(await each).approved for each in asked]))
    """
    running = asyncio.create_task(run(body))
    await until(lambda: desk.text, "one too many was refused")
    for _ in range(MOST_WAITING):
        desk.answers.put_nowait(said(True))
    assert await running == Succeeded("True")
    assert (len(desk.events), desk.text) == (MOST_WAITING, "100 answers are waited for; more are too manyTrue")


async def test_a_desk_that_breaks_while_the_agent_waits_for_its_answer_ends_the_attempt(
    run: Any, desk: RecordingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(question: str, **about: Any) -> Answer:
        raise OSError("the desk is broken")

    monkeypatch.setattr(desk, "ask", broken)
    async with asyncio.timeout(30):
        with pytest.raises(OSError, match="the desk is broken"):
            await run("await context.ask('Send it?')")


@pytest.mark.parametrize(
    "message",
    [
        {"type": "ask"},
        {"type": "park", "question": 1},
        {"type": "ask", "question": "?", "options": [{"id": "a"}]},
        {"type": "ask", "question": "?", "detail": []},
        {"type": "checkpoint", "data": "not base64!"},
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(run: Any, desk: RecordingDesk, message: dict[str, Any]) -> None:
    body = f"""
        try:
            await context._line.request(json.loads({json.dumps(json.dumps(message))}))
        except RuntimeError as refusal:
            return str(refusal)
    """
    outcome = await run(body)
    assert outcome == Succeeded(f"the desk does not understand {message['type']!r}")
    assert desk.events == []
