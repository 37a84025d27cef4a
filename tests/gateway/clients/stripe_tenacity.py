"""tenacity(3) around stripe-python without a key: each of its calls has a new one."""

import json
import os

import stripe
from tenacity import RetryError, retry, stop_after_attempt

stripe.api_key = "sk_test_1"
stripe.api_base = os.environ["BASE_URL"]
stripe.default_http_client = stripe.RequestsClient(timeout=int(os.environ["TIMEOUT"]))


@retry(stop=stop_after_attempt(3))
def charge():
    return stripe.Charge.create(amount=100, currency="usd", source="tok_visa")


try:
    outcome = "succeeds" if charge().amount == 100 else "is wrong"
except RetryError:
    outcome = "fails"
print(json.dumps({"outcome": outcome}))
