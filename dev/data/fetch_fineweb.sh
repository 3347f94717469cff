#!/bin/sh
# FineWeb's 10-billion-token sample, tokenized with GPT-2's vocabulary, as modded-nanogpt trains on
# it: the validation shard and the first N of 103 training shards. A shard has 100 million tokens
# (0.2 GB); the last training shard has a little over half of that.
#
#     dev/data/fetch_fineweb.sh [N]          writes data/fineweb; N is 1 by default
#     ./train_gpt2 --data data/fineweb --tokenizer data/gpt2.tiktoken --init d12 --seq-len 1024
#
# Every shard is checked against its SHA-256 in fineweb.sha256, for a fixed revision. Two projects
# publish the same checksums of the validation shard and of training shards 1 to 9; the others come
# from one project. An interrupted download is continued. Without a network: put the shards into
# data/fineweb and run this again to check them. It prints the URL of the first missing shard; the
# other URLs differ in the file's name only.
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh

shards=${1:-1}
case $shards in
    [1-9] | [1-9][0-9] | 10[0-3]) ;;
    *) echo "fetch_fineweb.sh: $1: expected the number of training shards, 1 to 103" >&2
       exit 1 ;;
esac

from=https://huggingface.co/datasets/kjj0/fineweb10B-gpt2/resolve
from=$from/889765ea1f903759787add96995d81171b632d0c
head -n $((shards + 1)) dev/data/fineweb.sha256 |      # the validation shard comes first
while read -r sha256 name; do
    fetch "$from/$name" "$sha256" "data/fineweb/$name" || exit 1
done
