"""Runs a command and adds its peak memory, in MiB, to the JSON document that it prints last.

usage: measured.py COMMAND [ARGUMENT …]

A process of its own, since a child is charged with the memory of whoever started it.
"""

import json
import resource
import subprocess
import sys

done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=False)
if done.returncode != 0:
    sys.exit(done.returncode)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
unit = 2**20 if sys.platform == "darwin" else 2**10
print(json.dumps(json.loads(done.stdout.splitlines()[-1]) | {"peak_mib": peak / unit}))
