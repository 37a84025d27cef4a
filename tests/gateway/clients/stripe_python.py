"""A charge with stripe-python, and one more call if the first fails, as an agent makes it."""

import json
import os

import stripe

stripe.api_key = "sk_test_1"
stripe.api_base = os.environ["BASE_URL"]
stripe.max_network_retries = 2
stripe.default_http_client = stripe.RequestsClient(timeout=int(os.environ["TIMEOUT"]))

outcome = "fails"
for _ in range(3):
    try:
        charge = stripe.Charge.create(amount=100, currency="usd", source="tok_visa")
        outcome = "succeeds" if charge.amount == 100 else "is wrong"
        break
    except stripe.StripeError:
        pass
print(json.dumps({"outcome": outcome}))
