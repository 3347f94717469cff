#!/bin/sh
# Runs a command twice at the same time: what one core does while another does the same. The last
# argument is the first run's log; the second run's is LOG.second. Its command may end otherwise:
# $SECOND holds more flags.
#
#     scripts/lab/shared/pair.sh ./train_gpt2 ... --log runs/pair.jsonl
#
# The exit status is that of a run that failed, or 0.
for log; do :; done
rm -f "$log.second"
"$@" & first=$!
# shellcheck disable=SC2086
"$@" ${SECOND:-} --log "$log.second" & second=$!
trap 'kill $first $second; exit 143' TERM
wait $first
status=$?
wait $second || status=$?
exit $status
