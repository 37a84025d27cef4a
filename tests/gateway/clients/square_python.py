"""A payment with Square's SDK and a new key for each call, in an application that tries three times."""

import json
import os
import uuid

from square import Square

client = Square(token="t", base_url=os.environ["BASE_URL"], timeout=int(os.environ["TIMEOUT"]))

outcome = "fails"
for _ in range(3):
    try:
        money = {"amount": 100, "currency": "USD"}
        made = client.payments.create(source_id="cnon:ok", idempotency_key=str(uuid.uuid4()), amount_money=money)
        outcome = "succeeds" if made.payment.id else "is wrong"
        break
    except Exception:
        pass
print(json.dumps({"outcome": outcome}))
