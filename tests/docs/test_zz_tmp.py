import sys
import base64, time
from rota.access.vault import open_vault, Vault
from rota.model import webhook
from rota.roster import triggers, automations
from rota.scheduler.inbound import receive_webhook
from rota.runs import triggering
from rota.model.run import Source
async def test_lost(house, tmp_path):
    a, b = open_vault(tmp_path/'a'), open_vault(tmp_path/'b')
    aid = await house.automation(triggers=[{"webhook": {}}])
    ws = house.caller.workspace_id
    async with house.db.transaction() as conn:
        from rota.db import triggers as rows
        [t] = await rows.of_automations(conn, ws, [aid])
        await triggers.new_secret(conn, a, ws, t["id"])
        new = await triggers.new_secret(conn, b, ws, t["id"])
    ts=str(int(time.time())); 
    async with house.db.transaction() as conn:
        try:
            print('RESULT', await receive_webhook(conn, b, t["id"], headers={"message_id":"m","timestamp":ts,"signatures":webhook.sign(new,"m",ts,b"{}")}, body=b"{}", payload={}))
        except Exception as e: print('RESULT', type(e), e)
async def test_burst(house):
    aid = await house.automation(triggers=[{"event": "e", "max_fires": 1}])
    ws = house.caller.workspace_id
    async with house.db.transaction() as conn:
        from rota.db import triggers as rows
        [t] = await rows.of_automations(conn, ws, [aid])
        r = await triggering.fire(conn, [triggering.Occurrence(ws, t["id"], Source.EVENT, k, None) for k in "abc"])
    print('RESULT burst', len(r), [x['status'] for x in await house.ledger(aid)])
