"""The world that the agent changes: a file of effects (SHOP_FILE). Every call adds a line."""

import json
import os
import sys
import uuid

tool, arguments = sys.argv[1:]
number = uuid.uuid4().hex[:8]
with open(os.environ["SHOP_FILE"], "a") as effects:
    effects.write(json.dumps({"tool": tool, **json.loads(arguments)}) + "\n")
print(f"{tool} {number} is done", end="")
