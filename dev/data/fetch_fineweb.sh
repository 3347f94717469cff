#!/bin/sh
# FineWeb, tokenized with GPT-2's vocabulary: the validation shard and the first N training shards.
# A shard has 100 million tokens (0.2 GB); a corpus's last ones may be shorter.
#
#     dev/data/fetch_fineweb.sh [N] [CORPUS]      N is 1 by default, CORPUS 10B
#     ./train_gpt2 --data data/fineweb --tokenizer data/gpt2.tiktoken --init d12 --seq-len 1024
#
#     CORPUS  to                N        from the data set, on huggingface.co
#     10B     data/fineweb      1-103    kjj0/fineweb10B-gpt2
#     100B    data/fineweb100B  1-1030   kjj0/fineweb100B-gpt2
#     edu     data/fineweb_edu  1-1001   karpathy/fineweb-edu-100B-gpt2-token-shards
#
# These are FineWeb's samples of 10 and 100 billion tokens, and FineWeb-Edu's of 100 billion.
#
# 10B: every shard is checked against its SHA-256 in fineweb.sha256, for a fixed revision. Two
# projects publish the same checksums of the validation shard and of training shards 1 to 9; the
# others come from one project.
#
# 100B and edu: the checksum of a shard is read from its Git LFS pointer, on the same server. It
# finds a damaged download, but not a server that sends other shards. fineweb.sha256 has those of
# edu that were known when this was written. Without a pointer, a shard's header, its count of tokens
# and its size are checked, and this says so. edu has a fixed revision, 100B none: its is not known
# here. Both were written from these projects' pages and loaders, without a network; nobody has run
# them yet.
#
# An interrupted download is continued. Without a network: put the shards into the folder and run
# this again to check them. It prints the URL of the first missing shard; the other URLs differ in
# the file's name only.
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh

shards=${1:-1} corpus=${2:-10B} prefix=fineweb known=dev/data/fineweb.sha256
case $corpus in
    10B) most=103 folder=data/fineweb
         from=kjj0/fineweb10B-gpt2 revision=889765ea1f903759787add96995d81171b632d0c ;;
    100B) most=1030 folder=data/fineweb100B known=/dev/null
         from=kjj0/fineweb100B-gpt2 revision=main ;;
    edu) most=1001 folder=data/fineweb_edu prefix=edu_fineweb
         from=karpathy/fineweb-edu-100B-gpt2-token-shards
         revision=a33f75d78c7f74236fb03754ec1eb3cc77507d64 ;;
    *) echo "fetch_fineweb.sh: $corpus: expected 10B, 100B or edu" >&2; exit 1 ;;
esac
case $shards in
    [1-9] | [1-9][0-9] | [1-9][0-9][0-9] | [1-9][0-9][0-9][0-9]) [ "$shards" -le $most ] ;;
    *) false ;;
esac || {
    echo "fetch_fineweb.sh: $1: expected the number of training shards, 1 to $most" >&2
    exit 1
}

from=https://huggingface.co/datasets/$from
{ echo val 0; seq -f "train %.0f" 1 "$shards"; } |
while read -r split number; do
    name=$(printf '%s_%s_%06d.bin' $prefix "$split" "$number")
    sha256=$(sed -n "s/  $name\$//p" $known)
    if [ -z "$sha256" ] && [ ! -e "$folder/$name" ]; then       # else it was checked when it came
        sha256=$(fetch_pointer "$from/raw/$revision/$name")
        [ -n "$sha256" ] ||
            echo "note: no checksum of $name is known; its header and size are checked instead"
    fi
    fetch "$from/resolve/$revision/$name" "${sha256:-shard}" "$folder/$name" || exit 1
done
