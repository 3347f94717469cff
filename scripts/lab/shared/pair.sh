#!/bin/sh
# Runs a command twice at the same time: what one core does while another does the same. The last
# argument is the first run's log; the second run's is LOG.second.
#
#     scripts/lab/shared/pair.sh ./train_gpt2 ... --log runs/pair.jsonl
#
# The exit status is that of a run that failed, or 0.
for log; do :; done
rm -f "$log.second"
"$@" & first=$!
"$@" --log "$log.second" & second=$!
trap 'kill $first $second; exit 143' TERM
wait $first
status=$?
wait $second || status=$?
exit $status
