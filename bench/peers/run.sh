#!/bin/sh
# run.sh DIR: measures the peers with ledgers in DIR and prints one JSON line for each measurement.
# Builds and installs what is missing; needs cargo and python3 with pip. Talk goes to stderr.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
python=$target/venv/bin/python
export PYTHONDONTWRITEBYTECODE=1

cargo build --quiet --release --locked --manifest-path "$here/Cargo.toml" >&2
"$python" -c 'import once, effect_log' 2>/dev/null || "$here/setup.sh" "$target/venv" >&2

mkdir -p "$1"
ledgers=$(mktemp -d "$1/peers.XXXXXX")
trap 'rm -rf "$ledgers"' EXIT
trap 'exit 1' INT TERM

# Time bounds the first calls; the replay then calls as many keys as they reached.
measure() {
    for callers in 1 64; do
        ledger=$(mktemp -d "$ledgers/XXXXXX")
        line=$("$@" --dir "$ledger" --callers "$callers" --mode first --operations 1000000 --seconds 8)
        echo "$line"
        reached=$(echo "$line" | sed 's/.*"operations":\([0-9]*\).*/\1/')
        "$@" --dir "$ledger" --callers "$callers" --mode replay --operations "$reached" --seconds 8
        rm -rf "$ledger"
    done
}

measure "$target/release/agent_effects_bench"
measure "$python" "$here/agent_once_bench.py"
measure "$python" "$here/effect_log_bench.py" --log key
measure "$python" "$here/effect_log_bench.py" --log run
