#!/usr/bin/env bash
# dev/data/fetch.sh without a network: curl is replaced by one that plays a server from a file.
#
#     SERVED    the file that the server holds, or a folder of them; absent: no network
#     BREAK_AT  the connection breaks after this many bytes of the file
. "$(dirname "$0")/tools.sh"
TMP=${dir:?}
URL=https://server.invalid/file.txt

mkdir "$TMP/bin"
cat >"$TMP/bin/curl" <<'FAKE'
#!/bin/sh
out=/dev/stdout have=0
while [ $# -gt 0 ]; do
    case $1 in
        --output) shift; out=$1 ;;
        --continue*) continue=yes ;;
        *) url=$1 ;;
    esac
    shift
done
[ ! -d "$SERVED" ] || SERVED=$SERVED/${url##*/}
case $url in */raw/*) SERVED=$SERVED.pointer; echo "$url" >>"$TMP/pointers" ;; esac
if [ "$out" != /dev/stdout ]; then
    [ "$continue" = yes ] || : >"$out"
    have=$(($(wc -c <"$out")))
    echo "from $have" >>"$TMP/calls"
fi
[ -e "$SERVED" ] || { echo "curl: (6) Could not resolve host: server.invalid" >&2; exit 6; }
if [ $have -ge $(($(wc -c <"$SERVED"))) ]; then
    echo "curl: (22) The requested URL returned error: 416" >&2
    exit 22
fi
if [ -n "$BREAK_AT" ]; then
    head -c "$BREAK_AT" "$SERVED" | tail -c +$((have + 1)) >>"$out"
    echo "curl: (18) transfer closed" >&2
    exit 18
fi
tail -c +$((have + 1)) "$SERVED" >>"$out"
FAKE
chmod +x "$TMP/bin/curl"

# serve [NAME=VALUE...] COMMAND...: runs it with the fake curl; status, $TMP/out, $TMP/err.
serve() {
    : >"$TMP/calls"
    env TMP="$TMP" SERVED="$TMP/served" PATH="$TMP/bin:$PATH" "$@" >"$TMP/out" 2>"$TMP/err"
    status=$?
}
# run [NAME=VALUE...]: fetches $TMP/served into $TMP/data/file.txt.
run() {
    serve "$@" dev/data/fetch.sh "$URL" "$SUM" "$TMP/data/file.txt"
}
# want STATUS WORDS: the status, and words in what it said; an error is one line.
want() {
    [ "$status" -eq "$1" ] || note "status $status, not $1"
    cat "$TMP/out" "$TMP/err" | grep -q -e "$2" || note "does not say '$2': $(cat "$TMP/err")"
    [ "$(wc -l <"$TMP/err")" -eq "$1" ] || note "$(wc -l <"$TMP/err") lines on stderr, not $1"
}
want_file() { cmp -s "$TMP/text" "$TMP/data/file.txt" || note "the file is not what was served"; }
want_part() { # BYTES, or none
    bytes=none
    [ ! -e "$TMP/data/file.txt.part" ] || bytes=$(($(wc -c <"$TMP/data/file.txt.part")))
    [ "$bytes" = "$1" ] || note "the .part has $bytes bytes, not $1"
}
want_no_file() { [ ! -e "$TMP/data/file.txt" ] || note "left a file behind"; }
# fresh: a server that has the text, and an empty folder.
fresh() {
    rm -rf "$TMP/data" "$TMP/served"
    cp "$TMP/text" "$TMP/served"
}

sum_of() { { sha256sum "$1" || shasum -a 256 "$1"; } 2> /dev/null | cut -d " " -f 1; }
seq 1 5000 >"$TMP/text"
SUM=$(sum_of "$TMP/text")

fresh
run; want 0 "checksum right"; want_file; want_part none
rm "$TMP/served"
run; want 0 "already here"; want_file
[ -s "$TMP/calls" ] && note "asked the network for a file that is here"
end fetch_good_file

fresh
mkdir "$TMP/data"; echo mine >"$TMP/data/file.txt"
run; want 1 "exists with other contents"
[ "$(cat "$TMP/data/file.txt")" = mine ] || note "overwrote it"
end fetch_other_file_is_kept

fresh
echo more >>"$TMP/served"
run; want 1 "checksum is not"; want_no_file; want_part none
printf '<!DOCTYPE html>\n<html><body>Log in</body></html>\n' >"$TMP/served"
run; want 1 "web page"; want_no_file; want_part none
rm "$TMP/served"
run; want 1 "get $URL and put it at $TMP/data/file.txt"; want_no_file; want_part none
end fetch_what_is_not_the_file

fresh
run BREAK_AT=1000; want 1 "by hand"; want_no_file; want_part 1000
run; want 0 "continuing after 1000 bytes"; want_file; want_part none
grep -q "from 1000" "$TMP/calls" || note "fetched the whole file again"
end fetch_interrupted_then_continued

# Nothing on the PATH but what fetch.sh may use, and a wget that speaks as the fake curl does.
fresh
mkdir "$TMP/tools"
for tool in sh cat dirname mkdir wc tr mv rm head tail grep sha256sum shasum perl; do
    at=$(type -P $tool) && ln -s "$at" "$TMP/tools/$tool"
done
sed -e 's/--output)/--output-document=*)/' -e 's/shift; out=$1/out=${1#*=}/' \
    -e 's/exit 6/exit 4/; s/exit 22/exit 8/; s/exit 18/exit 4/' \
    "$TMP/bin/curl" >"$TMP/tools/wget"
chmod +x "$TMP/tools/wget"
run PATH="$TMP/tools" BREAK_AT=3000; want 1 "by hand"; want_part 3000
run PATH="$TMP/tools"; want 0 "continuing after 3000"; want_file; want_part none
end fetch_with_wget

FETCH=$TMP/tree/dev/data/fetch.sh
mkdir -p "$TMP/tree/dev"; cp -r dev/data "$TMP/tree/dev/"
fresh
rm "$TMP/served"
serve "$FETCH" shakespeare
want 1 "tinyshakespeare/input.txt and put it at data/tinyshakespeare.txt"
serve "$FETCH" gpt2-medium
want 1 "openai-community/gpt2-medium/resolve/[0-9a-f]*/config.json and put it at data/gpt2-medium/"
serve "$FETCH" gpt3; want 1 "'gpt3': expected shakespeare, "
end fetch_names_the_source

# FineWeb, with short shards in a copy of the tree that knows their checksums.
VAL=fineweb_val_000000.bin TRAIN1=fineweb_train_000001.bin TRAIN2=fineweb_train_000002.bin
mkdir "$TMP/shards"
for shard in $VAL $TRAIN1 $TRAIN2; do
    { echo "$shard"; cat "$TMP/text"; } >"$TMP/shards/$shard"
    echo "$(sum_of "$TMP/shards/$shard")  $shard" >>"$TMP/sums"
done
want_shards() { # NAME...: these and nothing else, each as it was published
    held=$(ls "$TMP/tree/data/fineweb" | tr '\n' ' ')
    [ "${held% }" = "$*" ] || note "data/fineweb holds '$held', not '$*'"
    for shard in "$@"; do
        cmp -s "$TMP/shards/$shard" "$TMP/tree/data/fineweb/$shard" || note "$shard is damaged"
    done
}

fresh
rm "$TMP/served"
cp -R "$TMP/shards" "$TMP/served"
cp "$TMP/sums" "$TMP/tree/dev/data/fineweb.sha256"
serve "$FETCH" fineweb; want 0 "$TRAIN1: .* checksum right"; want_shards $TRAIN1 $VAL
serve "$FETCH" fineweb 2; want 0 "$TRAIN1: already here"; want_shards $TRAIN1 $TRAIN2 $VAL
[ "$(wc -l <"$TMP/calls")" -eq 1 ] || note "asked the network for shards that are here"
end fetch_fineweb_good_shards

# The larger corpora: shards of 50 tokens, whose checksums the server's pointers tell, or nobody.
make_shard() {                              # make_shard FILE TOKENS: as long as its header says
    { int32 20240520 1 "$2"; head -c 1012 /dev/zero; head -c $((2 * $2)) "$TMP/text"; } >"$1"
}
for corpus in 100B:fineweb:fineweb100B edu:edu_fineweb:fineweb_edu; do
    name=${corpus%%:*} prefix=${corpus#*:} prefix=${prefix%:*} folder=$TMP/tree/data/${corpus##*:}
    fresh
    rm -rf "$TMP/served" "$TMP/pointers"
    mkdir "$TMP/served"
    for shard in val_000000 train_000001; do
        make_shard "$TMP/served/${prefix}_$shard.bin" 50
        printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 1124\n' \
            "$(sum_of "$TMP/served/${prefix}_$shard.bin")" \
            >"$TMP/served/${prefix}_$shard.bin.pointer"
    done
    serve "$FETCH" fineweb 1 $name; want 0 "${prefix}_train_000001.bin: 1124 bytes, checksum right"
    cmp -s "$TMP/served/${prefix}_train_000001.bin" "$folder/${prefix}_train_000001.bin" ||
        note "$name: not the shard that was served"
    same "the pointers of $name" "$(wc -l <"$TMP/pointers" | tr -d ' ')" 2
    serve "$FETCH" fineweb 1 $name; want 0 "_train_000001.bin: already here, header and size right"
    [ -s "$TMP/calls" ] && note "$name: asked the network for shards that are here"

    rm "$folder"/* "$TMP/served/"*.pointer  # no pointers
    serve "$FETCH" fineweb 1 $name; want 0 "no checksum of ${prefix}_train_000001.bin is known"
    want 0 "${prefix}_train_000001.bin: 1124 bytes, header and size right"
    rm "$folder/${prefix}_train_000001.bin"
    head -c 1120 "$TMP/served/${prefix}_val_000000.bin" >"$TMP/served/${prefix}_train_000001.bin"
    serve "$FETCH" fineweb 1 $name; want 1 "it is not a shard as long as its header says"
    end fetch_fineweb_$name
done
grep -q "karpathy/fineweb-edu-100B-gpt2-token-shards/raw/[0-9a-f]\{40\}/edu_fineweb_train_" \
    "$TMP/pointers" || note "edu without a fixed revision: $(head -n 1 "$TMP/pointers")"
for arguments in 104 1.5 "1 1T"; do
    serve "$FETCH" fineweb $arguments; want 1 "expected"
done
end fetch_fineweb_corpora_are_named

# A slip in the list costs its user 200 MB: each shard once, in order, each with a checksum.
fresh
{ echo $VAL; seq 1 103 | while read -r i; do printf 'fineweb_train_%06d.bin\n' "$i"; done; } \
    >"$TMP/names"
sed -n 's/^[0-9a-f]\{64\}  //p' dev/data/fineweb.sha256 | cmp -s - "$TMP/names" ||
    note "it does not name the 104 shards in order"
end fetch_fineweb_list

exit $failed
