"""The Python SDKs of vendors: each checks what Onceward signs, and signs what Onceward checks."""

import json
import os
import subprocess
import time
from datetime import UTC, datetime

from discord_interactions import verify_key
from openai import OpenAI
from sendgrid.helpers.eventwebhook import EventWebhook
from slack_sdk.signature import SignatureVerifier
from square.utils.webhooks_helper import verify_signature as verify_square
from standardwebhooks import Webhook as Standard
from stripe import WebhookSignature
from svix.webhooks import Webhook as Svix
from twilio.request_validator import RequestValidator

URL = "https://example.com/hooks/in?a=1&b=2"
BODY = '{"id":"evt_1","type":"é.created","event_id":"e1"}'
FORM = "To=%2B15005550006&Body=caf%C3%A9+%26+tea"
FIELDS = {"To": "+15005550006", "Body": "café & tea"}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PLAIN = "8f742231b10e8888abcd99yyyzzz85a5"

program = subprocess.Popen([os.environ["WEBHOOKS"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(**question):
    program.stdin.write(json.dumps({"now_ms": int(time.time() * 1000), "url": URL, **question}) + "\n")
    program.stdin.flush()
    answer = json.loads(program.stdout.readline())
    assert "error" not in answer, answer
    return answer


def holds(check):
    """Whether an SDK accepts. Some return false, some raise."""
    try:
        return check() is not False
    except Exception as refused:  # every SDK has its own
        return f"{type(refused).__name__}: {refused}"


def row(sdk, what, result, expected=True):
    ok = (result is True) == expected
    print(json.dumps({"sdk": sdk, "what": what if ok else f"{what}: {result}", "holds": ok}), flush=True)


def theirs(sdk, preset, check, body=BODY, **more):
    """Onceward signs, the SDK checks."""
    signed = ask(sign=preset, id="msg_1", body=body, **more)
    row(sdk, "accepts what Onceward signs", holds(lambda: check(signed, signed["body"])))
    row(sdk, "refuses it with another body", holds(lambda: check(signed, signed["body"] + " ")), False)


def ours(sdk, preset, headers, body=BODY, secret=PLAIN, url=URL):
    """The SDK has signed, Onceward checks."""
    answer = ask(judge=preset, secret=secret, headers=headers, body=body, url=url)
    row(sdk, "signs what Onceward accepts", True if "events" in answer else answer)
    answer = ask(judge=preset, secret=secret, headers=headers, body=body + "x", url=url)
    row(sdk, "and refuses with another body", "rejected" in answer or answer)


def main():
    now = datetime.now(UTC).replace(microsecond=0)
    seconds = str(int(now.timestamp()))

    header = lambda name: lambda signed: signed["headers"][name]  # noqa: E731
    theirs(
        "stripe",
        "stripe",
        lambda signed, body: WebhookSignature.verify_header(body, header("stripe-signature")(signed), PLAIN, 300),
        secret=PLAIN,
    )
    mac = WebhookSignature._compute_signature(f"{seconds}.{BODY}", PLAIN)
    ours("stripe", "stripe", {"Stripe-Signature": f"t={seconds},v1={mac}"})

    for name, kind, preset in [("svix", Svix, "svix"), ("standardwebhooks", Standard, "standard-webhooks")]:
        hook = kind(SECRET)
        prefix = "svix" if preset == "svix" else "webhook"
        theirs(name, preset, lambda signed, body: hook.verify(body, signed["headers"]) or True, secret=SECRET)
        signature = hook.sign("msg_2", now, BODY)
        headers = {f"{prefix}-id": "msg_2", f"{prefix}-timestamp": seconds, f"{prefix}-signature": signature}
        ours(name, preset, headers, secret=SECRET)

    client = OpenAI(api_key="none", webhook_secret=SECRET)
    theirs(
        "openai",
        "openai",
        lambda signed, body: client.webhooks.verify_signature(body, signed["headers"]) or True,
        secret=SECRET,
    )

    slack = SignatureVerifier(PLAIN)
    theirs("slack_sdk", "slack", lambda signed, body: slack.is_valid_request(body, signed["headers"]), secret=PLAIN)
    signature = slack.generate_signature(timestamp=seconds, body=BODY)
    ours("slack_sdk", "slack", {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": seconds})

    twilio = RequestValidator(PLAIN)
    form = {"content-type": "application/x-www-form-urlencoded"}
    check = header("x-twilio-signature")
    signed = ask(sign="twilio", secret=PLAIN, headers=form, body=FORM)
    row("twilio", "accepts what Onceward signs", holds(lambda: twilio.validate(URL, FIELDS, check(signed))))
    other = {**FIELDS, "Body": "cafe"}
    row("twilio", "refuses it with another form", holds(lambda: twilio.validate(URL, other, check(signed))), False)
    signed = ask(sign="twilio", secret=PLAIN, headers={"content-type": "application/json"}, body=BODY)
    row(
        "twilio", "accepts JSON that Onceward signs", holds(lambda: twilio.validate(signed["url"], BODY, check(signed)))
    )
    mac = twilio.compute_signature(URL, FIELDS)
    ours("twilio", "twilio", {**form, "X-Twilio-Signature": mac}, body=FORM)

    theirs(
        "square",
        "square",
        lambda signed, body: verify_square(
            request_body=body,
            signature_header=header("x-square-hmacsha256-signature")(signed),
            signature_key=PLAIN,
            notification_url=URL,
        ),
        secret=PLAIN,
    )

    sendgrid = EventWebhook()
    prefix = "x-twilio-email-event-webhook"
    theirs(
        "sendgrid",
        "sendgrid",
        lambda signed, body: sendgrid.verify_signature(
            body,
            header(f"{prefix}-signature")(signed),
            header(f"{prefix}-timestamp")(signed),
            sendgrid.convert_public_key_to_ecdsa(signed["made"]["key"]),
        ),
        body='[{"sg_event_id":"a"}]\r\n',
    )

    theirs(
        "discord-interactions",
        "discord",
        lambda signed, body: verify_key(
            body.encode(),
            header("x-signature-ed25519")(signed),
            header("x-signature-timestamp")(signed),
            signed["made"]["key"],
        ),
    )


main()
