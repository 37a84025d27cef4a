"""An issue with PyGithub, which sends a POST up to eleven times."""

import json
import os

from github import Auth, Github

client = Github(auth=Auth.Token("t"), base_url=os.environ["BASE_URL"], timeout=int(os.environ["TIMEOUT"]))

try:
    issue = client.get_repo("o/r", lazy=True).create_issue("it is broken")
    outcome = "succeeds" if issue.title == "it is broken" else "is wrong"
except Exception:
    outcome = "fails"
print(json.dumps({"outcome": outcome}))
