#!/bin/sh
# Downloads texts, vocabularies, weights and tokens, each file with a known checksum, into data/:
#
#     dev/data/fetch.sh shakespeare             1.1 MB of plays: data/tinyshakespeare.txt
#     ./prepare text data/tinyshakespeare.txt --out data/shakespeare
#
#     dev/data/fetch.sh vocabulary              GPT-2's tokens: data/gpt2.tiktoken
#     ./prepare text FILE --out DIR --tokenizer data/gpt2.tiktoken
#
#     dev/data/fetch.sh hellaswag               the validation split: data/hellaswag_val.jsonl
#     ./train_gpt2 ... --hellaswag data/hellaswag_val.jsonl
#
#     dev/data/fetch.sh gpt2                    OpenAI's weights, 0.5 GB: data/gpt2; also
#     ./train_gpt2 --init data/gpt2 ...         gpt2-medium, -large and -xl: 1.5, 3.2 and 6.4 GB
#
#     dev/data/fetch.sh fineweb [N] [CORPUS]    N shards of FineWeb's tokens: see below
#     dev/data/fetch.sh URL SHA256 FILE         any other file
#
# - A file is either absent or complete: the download goes to FILE.part, which is renamed after its
#   checksum has been verified.
# - If FILE has the right checksum, the network is not used. Other contents are an error.
# - If SHA256 is the word shard, no checksum is known: a shard's header, its count of tokens and its
#   size are verified instead.
# - An interrupted download in FILE.part is continued if possible, else started again.
# - A failure prints one line on stderr, with the URL for a manual download, and ends with status 1.
#   So without a network: put the files where these lines say, and run this again to check them.
#
# Plain sh. Needs curl or wget, and sha256sum or shasum.
cd "$(dirname "$0")/../.." || exit 1
die() { echo "fetch.sh: $*" >&2; exit 1; }

# ---- one file ----

# fetch URL SHA256 FILE. A subshell, so its variables do not leak.
fetch() (
    url=$1 sha256=$2 dest=$3 part=$3.part right="checksum right"
    wrong="its checksum is not $sha256: the file has changed or was damaged"
    if [ "$sha256" = shard ]; then
        right="header and size right" wrong="it is not a shard as long as its header says"
    fi
    if [ -e "$dest" ]; then
        is_right "$dest" && echo "$dest: already here, $right" && exit 0
        die "$dest: exists with other contents; move it away and run this again"
    fi
    { mkdir -p "$(dirname "$dest")" && true >>"$part"; } 2>/dev/null ||
        die "$dest: cannot be written; check the directory and its permissions"
    if [ -s "$part" ]; then
        is_right "$part" && keep
        echo "$dest: continuing after $(size_of "$part") bytes"
        fetch_rest && is_right "$part" && keep
        case "$status $reason" in
            "0 "* | "33 "* | "36 "* | *416*) true >"$part" ;;  # wrong bytes, or no resuming
            *) by_hand "download interrupted ($reason); run this again to continue it" ;;
        esac
    fi
    echo "$dest: fetching $url"
    if ! fetch_rest; then
        [ -s "$part" ] || rm -f "$part"
        by_hand "download failed ($reason)"
    fi
    is_right "$part" && keep
    reason=$wrong
    ! head -c 1024 "$part" | grep -qi '<!doctype html\|<html' ||
        reason="the server sent a web page, perhaps a proxy's or a login page"
    rm -f "$part"
    by_hand "download rejected ($reason)"
)

# The functions below use fetch's variables.

# Downloads the missing rest of $url to $part. Sets status (curl's, or wget's plus 100) and reason.
fetch_rest() {
    if command -v curl >/dev/null 2>&1; then
        reason=$(curl --fail --silent --show-error --location --retry 2 --connect-timeout 20 \
                      --continue-at - --output "$part" "$url" 2>&1)
        status=$?
    elif command -v wget >/dev/null 2>&1; then
        reason=$(wget --no-verbose --continue --tries=2 --timeout=20 \
                      --output-document="$part" "$url" 2>&1)
        status=$?
        [ $status -eq 0 ] || status=$((status + 100))
    else
        reason="neither curl nor wget is installed" status=127
    fi
    reason=$(printf '%s\n' "$reason" | tail -n 1)
    return $status
}

is_right() {
    if [ "$sha256" = shard ]; then
        # shellcheck disable=SC2046                        # words on purpose
        set -- "$1" $(head -c 12 "$1" | od -An -t d4)      # magic, version, number of tokens
        [ "${2:-}:${3:-}" = 20240520:1 ] && [ "${4:-0}" -gt 0 ] &&
            [ "$(size_of "$1")" = $((1024 + 2 * $4)) ]
        return
    fi
    found=$({ sha256sum || shasum -a 256; } <"$1" 2>/dev/null)
    [ "${found%% *}" = "$sha256" ]
}

# Success: renames $part and exits.
keep() {
    mv -f "$part" "$dest" || exit 1
    echo "$dest: $(size_of "$dest") bytes, $right"
    exit 0
}

size_of() { wc -c <"$1" | tr -d ' '; }

# Failure: $1 says what went wrong.
by_hand() { die "$dest: $1; by hand: get $url and put it at $dest"; }

# ---- GPT-2's weights ----

# A checkpoint directory that --init reads: a fixed revision of each model, and SHA-256 of its
# model.safetensors and config.json. The tokenizer is that of all four.
fetch_gpt2() {
    tokenizer=8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6
    case $1 in
        gpt2)
            revision=607a30d783dfa663caf39e06633721c8d4cfcd7e
            weights=248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707
            config=0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4 ;;
        gpt2-medium)
            revision=6dcaa7a952f72f9298047fd5137cd6e4f05f41da
            weights=fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd
            config=ef1a44d889ad1a0acc7731c78134f1b87d2d222f110e97dd10fd4117331caf22 ;;
        gpt2-large)
            revision=32b71b12589c2f8d625668d2335a01cac3249519
            weights=5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce
            config=7fccdcfd6622055342a734c663ee0b61ff4fd697f42467595df0bf4448c8c170 ;;
        gpt2-xl)
            revision=15ea56dee5df4983c59b2538573817e1667135e2
            weights=0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a
            config=be48115d52314bc27327e160bf10197760db02ea689d10adb24db4102edf7a8a ;;
    esac
    from=https://huggingface.co/openai-community/$1/resolve/$revision
    fetch "$from/config.json" $config "data/$1/config.json" &&
    fetch "$from/tokenizer.json" $tokenizer "data/$1/tokenizer.json" &&
    fetch "$from/model.safetensors" $weights "data/$1/model.safetensors"
}

# ---- FineWeb ----

# fetch_pointer URL FILE: the checksum in a Git LFS pointer, or nothing.
fetch_pointer() (
    url=$1 part=$2.pointer
    mkdir -p "$(dirname "$2")" && true >"$part" && fetch_rest &&
        sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p' "$part"
    rm -f "$part"
)

# FineWeb, tokenized with GPT-2's vocabulary: the validation shard and the first N training shards,
# 1 by default. A shard has 100 million tokens (0.2 GB); a corpus's last ones may be shorter.
#
#     CORPUS  to                N        from the data set, on huggingface.co
#     10B     data/fineweb      1-103    kjj0/fineweb10B-gpt2, the default
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
# finds a damaged download, but not a server that sends other shards. Without a pointer, a shard's
# header, its count of tokens and its size are checked, and this says so. edu has a fixed revision,
# 100B none: its is not known here. Both were written from these projects' pages and loaders; nobody
# has run them yet.
fetch_fineweb() {                            # fetch_fineweb N CORPUS
    prefix=fineweb known=/dev/null
    case $2 in
        10B) most=103 folder=data/fineweb known=dev/data/fineweb.sha256
             from=kjj0/fineweb10B-gpt2 revision=889765ea1f903759787add96995d81171b632d0c ;;
        100B) most=1030 folder=data/fineweb100B
              from=kjj0/fineweb100B-gpt2 revision=main ;;
        edu) most=1001 folder=data/fineweb_edu prefix=edu_fineweb
             from=karpathy/fineweb-edu-100B-gpt2-token-shards
             revision=a33f75d78c7f74236fb03754ec1eb3cc77507d64 ;;
        *) die "fineweb: $2: expected 10B, 100B or edu" ;;
    esac
    case $1 in
        [1-9] | [1-9][0-9] | [1-9][0-9][0-9] | [1-9][0-9][0-9][0-9]) [ "$1" -le $most ] ;;
        *) false ;;
    esac || die "fineweb: $1: expected the number of training shards, 1 to $most"
    from=https://huggingface.co/datasets/$from
    { echo val 0; seq -f "train %.0f" 1 "$1"; } |
    while read -r split number; do
        name=$(printf '%s_%s_%06d.bin' $prefix "$split" "$number")
        sha256=$(sed -n "s/  $name\$//p" $known)
        if [ -z "$sha256" ] && [ ! -e "$folder/$name" ]; then   # else it was checked when it came
            sha256=$(fetch_pointer "$from/raw/$revision/$name" "$folder/$name")
            [ -n "$sha256" ] ||
                echo "note: no checksum of $name is known; its header and size are checked instead"
        fi
        fetch "$from/resolve/$revision/$name" "${sha256:-shard}" "$folder/$name" || exit 1
    done
}

# ---- what there is ----

github=https://raw.githubusercontent.com
case ${1:-} in
    shakespeare)
        fetch $github/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
              86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
              data/tinyshakespeare.txt ;;
    vocabulary)                              # 50,256 lines of base64 and rank; end of text is 50256
        fetch https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken \
              306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930 data/gpt2.tiktoken ;;
    hellaswag)                               # Zellers et al. 2019: 10,042 contexts with 4 endings
        fetch $github/rowanz/hellaswag/master/data/hellaswag_val.jsonl \
              0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588 \
              data/hellaswag_val.jsonl ;;
    gpt2 | gpt2-medium | gpt2-large | gpt2-xl) fetch_gpt2 "$1" ;;
    fineweb) fetch_fineweb "${2:-1}" "${3:-10B}" ;;
    *://*) [ $# -eq 3 ] || die "expected URL SHA256 FILE"; fetch "$@" ;;
    *) die "'${1:-}': expected shakespeare, vocabulary, hellaswag, gpt2, gpt2-medium, gpt2-large," \
           "gpt2-xl or fineweb" ;;
esac
