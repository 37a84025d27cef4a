"""Tells whether the mail server has the invoice of an order (MAIL_FILE): exit 0 for yes, 10 for no."""

import os
import sys
from pathlib import Path

(order,) = sys.argv[1:]
mails = Path(os.environ["MAIL_FILE"])
sys.exit(0 if mails.exists() and f"invoice {order}" in mails.read_text().splitlines() else 10)
