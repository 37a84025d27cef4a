"""An order with PayPal's SDK, which adds no key to a request, in an application that tries three times."""

import json
import os

from paypalserversdk.configuration import Configuration, Environment, Server
from paypalserversdk.http.auth.o_auth_2 import ClientCredentialsAuthCredentials
from paypalserversdk.paypal_serversdk_client import PaypalServersdkClient

# The SDK has no setting for its base URL besides this table.
Configuration.environments[Environment.SANDBOX][Server.DEFAULT] = os.environ["BASE_URL"]
client = PaypalServersdkClient(
    client_credentials_auth_credentials=ClientCredentialsAuthCredentials("id", "secret"),
    environment=Environment.SANDBOX,
    timeout=int(os.environ["TIMEOUT"]),
)
money = {"currency_code": "USD", "value": "100.00"}
order = {"intent": "CAPTURE", "purchase_units": [{"amount": money}]}

outcome = "fails"
for _ in range(3):
    try:
        made = client.orders.create_order({"body": order})
        outcome = "succeeds" if made.body.id else "is wrong"
        break
    except Exception:
        pass
print(json.dumps({"outcome": outcome}))
