"""Sends the invoice of an order by mail to the server on port MAIL_PORT."""

import os
import smtplib
import sys

(order,) = sys.argv[1:]
text = f"Subject: invoice {order}\r\n\r\nPlease pay.\r\n"
with smtplib.SMTP("127.0.0.1", int(os.environ["MAIL_PORT"]), timeout=60) as server:
    server.sendmail("shop@example.org", ["customer@example.org"], text)
print(f"the invoice of {order} is sent")
