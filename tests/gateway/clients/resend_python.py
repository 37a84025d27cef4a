"""A mail with resend, which has no retries of its own, in an application that tries three times."""

import json
import os

import resend
from resend.http_client_requests import RequestsClient

resend.api_key = "re_1"
resend.api_url = os.environ["BASE_URL"]
resend.default_http_client = RequestsClient(timeout=int(os.environ["TIMEOUT"]))

outcome = "fails"
for _ in range(3):
    try:
        mail = resend.Emails.send({"from": "a@example.com", "to": ["b@example.com"], "subject": "s", "html": "h"})
        outcome = "succeeds" if mail["id"] == "mail_1" else "gets another mail"
        break
    except Exception:
        pass
print(json.dumps({"outcome": outcome}))
