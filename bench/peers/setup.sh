#!/bin/sh
# setup.sh VENV: a virtual environment with the Python peers. ai-effectlog is built from source, so cargo is needed.
set -eu
python3 -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check agent-once==0.1.0 ai-effectlog==0.1.0 \
    dbos==3.3.0 aws-lambda-powertools==3.37.0 redis==8.1.0 boto3==1.43.0
