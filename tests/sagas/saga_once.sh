#!/bin/sh
# The booking with `once run`, and `once undo` when a step does not succeed: saga_once.sh SERVICE FOLDER none|probe
# Works until every trip below FOLDER/limit is in FOLDER/done. A trip that was interrupted is done again from its beginning.
service=$1 folder=$2 mode=$3
undo="curl -sf -X POST '$service/cancel?trip={once.scope}&step={once.key}'"
while :; do
    trip=
    number=0
    limit=$(cat "$folder/limit")
    while [ "$number" -lt "$limit" ]; do
        grep -qx "trip-$number" "$folder/done" || { trip=trip-$number; break; }
        number=$((number + 1))
    done
    [ "$trip" ] || exit 0
    for step in flight hotel car insurance payment; do
        # curl says 22 for an answer of 400 or above: the service refused.
        set -- --scope "$trip" --name "$step" --key "$step" --undo "$undo" --fail-exit 22
        if [ "$mode" = probe ]; then
            set -- "$@" --class probed --probe "curl -sf '$service/booked?trip=$trip&step=$step'" --probe-no 22
        fi
        once run "$@" -- curl -sf -X POST "$service/book?trip=$trip&step=$step" || break
    done
    once undo --scope "$trip" --stored
    # A probe that finds nothing counts only when no request can be on its way any more.
    while [ $? = 79 ] && [ "$mode" = probe ]; do
        sleep 0.2
        once undo --scope "$trip" --stored
    done
    echo "$trip" >> "$folder/done"
done > /dev/null 2>&1
