#!/usr/bin/env bash
# prepare, as a user runs it: what it writes, and one refusal of each kind. What its tokens are is
# in test_tokenizer and test_tiktoken, what JSON lines are in test_texts. PREPARE names another
# binary.
. "$(dirname "$0")/tools.sh"

check() {                                   # check WHAT COMMAND...: the command must succeed
    what=$1; shift
    "$@" > "$dir/stdout" 2> "$dir/stderr" || note "$what: $(head -n 1 "$dir/stderr")"
}
# refused WORDS ARGS...: one line on stderr that holds the words, status 1, nothing in $dir/no.
refused() {
    one_line "$1" "$prepare" "${@:2}"
    grep -q "^prepare: " "$dir/stderr" || note "'$*' does not name the program"
    [ ! -e "$dir/no" ] || note "'$*' left a directory"
}
ints() { od -An -v -t d4 -N $((4 * $2)) "$1" | tr -s ' \n' '  ' | sed 's/^ //; s/ $//'; }
tokens() { tail -c +1025 "$1" | od -An -v -t u2 | tr -s ' ' '\n' | grep .; }
text_of() { tokens "$1" | "$prepare" decode --tokenizer "${2:-byte}"; }
eots() { tokens "$1" | grep -cx "$2"; }
leftovers() { find "$1" -name '*.prepare-tmp' | wc -l | tr -d ' '; }

# ---- tales ----

check tales "$prepare" tales --out "$dir/made/tales" --tokens 30000 --seed 7
train=$dir/made/tales/tales_train_000000.bin
val=$dir/made/tales/tales_val_000000.bin
for shard in "$train" "$val"; do
    count=$(tokens "$shard" | wc -l | tr -d ' ')
    same "header of $shard" "$(ints "$shard" 5)" "20240520 1 $count 257 256"
done
count=$(tokens "$train" | wc -l)
[ "$count" -ge 30000 ] && [ "$count" -lt 31100 ] || note "$count tokens, not 30000"
same "last token" "$(tokens "$train" | tail -n 1)" 256
floor=${val%.bin}.floor
same "first line of the floor" "$(head -n 1 "$floor")" "batchwise floor 1"
same "a floor for each tale" "$(tail -n +2 "$floor" | wc -l | tr -d ' ')" "$(eots "$val" 256)"
same "floors are positive numbers" \
    "$(tail -n +2 "$floor" | grep -Evc '^[0-9]+\.?[0-9]*$')" 0
same files "$(ls "$dir/made/tales" | xargs)" \
    "tales_train_000000.bin tales_val_000000.bin tales_val_000000.floor tokenizer.json"
end tales_writes_shards

OMP_NUM_THREADS=1 check again "$prepare" tales --out "$dir/again" --tokens 30000 --seed 7
check "the same seed, one thread" cmp "$train" "$dir/again/tales_train_000000.bin"
check "the same seed, one thread" cmp "$floor" "$dir/again/tales_val_000000.floor"
check more "$prepare" tales --out "$dir/again" --tokens 40000 --seed 7 --overwrite
check "validation does not depend on --tokens" cmp "$val" "$dir/again/tales_val_000000.bin"
cmp -s <(text_of "$train" | head -c 2000) <(text_of "$val" | head -c 2000) &&
    note "training and validation tales are the same"
end tales_are_their_seed

check names "$prepare" names --out "$dir/names" --tokens 800 --seed 7
same "an end of text, then seven letters" "$(tokens "$dir/names/names_train_000000.bin" |
    awk '($1 == 256) != (NR % 8 == 1)')" ""
same "their bytes" "$(cksum < "$dir/names/names_train_000000.bin")" "3680665794 2626"
end names_are_their_seed

# ---- text, byte level ----

printf 'a\0b\377\376 caf\303\251\n' > "$dir/bytes.txt"           # 12 bytes, not UTF-8
check bytes "$prepare" text "$dir/bytes.txt" --out "$dir/bytes" --val-fraction 0
text_of "$dir/bytes/text_train_000000.bin" > "$dir/back"
{ cat "$dir/bytes.txt"; printf '<|endoftext|>'; } > "$dir/want"
check "NUL and invalid UTF-8 come back" cmp "$dir/want" "$dir/back"
same "no validation" "$(ls "$dir/bytes" | tr '\n' ' ')" "text_train_000000.bin tokenizer.json "
end text_keeps_every_byte

printf 'one line of twenty..' > "$dir/1.txt"
printf 'two lines of ten....' > "$dir/2.txt"
check "two files" "$prepare" text "$dir/1.txt" --val-fraction 0.25 "$dir/2.txt" --out "$dir/two"
same train "$(text_of "$dir/two/text_train_000000.bin")" \
    "one line of twenty..<|endoftext|>two lines "
same val "$(text_of "$dir/two/text_val_000000.bin")" "of ten....<|endoftext|>"
same header "$(ints "$dir/two/text_train_000000.bin" 5)" "20240520 1 31 257 256"
grep -q "cut inside .*/2.txt, without an end of text there; from 20 documents on whole" \
    "$dir/stdout" || note "$(cat "$dir/stdout")"
end text_cuts_few_documents

for i in $(seq 40); do printf 'Tale %d.\nThe end.\n<|endoftext|>\n' $i; done > "$dir/tales.txt"
whole() {                               # whole WHAT ARGS...: each document ends as its text does
    what=$1; shift
    check "$what" "$prepare" text "$@" --out "$dir/whole" --overwrite
    for split in train:36 val:4; do
        text_of "$dir/whole/text_${split%:*}_000000.bin" | tr -d '\r\n' > "$dir/back"
        same "ends of $what, $split" "$(eots "$dir/whole/text_${split%:*}_000000.bin" 256)" \
            "${split#*:}"
        same "documents of $what, $split" \
            "$(grep -o 'The end\.<|endoftext|>' "$dir/back" | wc -l | tr -d ' ')" "${split#*:}"
    done
}
whole lines "$dir/tales.txt"
has "$dir/stdout" '40 lines "<|endoftext|>" end documents'
text_of "$dir/whole/text_val_000000.bin" | grep -q "^Tale 10\.$" || note "not every tenth tale"
{ echo; echo '<|endoftext|>'; cat "$dir/tales.txt"; } > "$dir/blank.txt"
whole "a separator first" "$dir/blank.txt"                # it is taken for no web page
mkdir "$dir/tales of mine"
for i in $(seq 40); do printf 'Tale %d.\nThe end.' $i > "$dir/tales of mine/$i.txt"; done
whole files "$dir/tales of mine"/*.txt
cat "$dir/tales.txt" | whole "a pipe" -
check none "$prepare" text "$dir/tales.txt" --separator none --out "$dir/whole" --overwrite \
    --val-fraction 0
same "a separator that is text" "$(eots "$dir/whole/text_train_000000.bin" 256)" 1
grep -q "train_gpt2 --train '$dir/whole/\*train" "$dir/stdout" || note "$(cat "$dir/stdout")"
check "too few" "$prepare" text "$dir/tales.txt" --out "$dir/whole" --overwrite --val-fraction 0.01
has "$dir/stdout" 'from 100 documents on whole'
check inside "$prepare" text "$dir/1.txt" --separator "twenty" --out "$dir/whole" --overwrite
has "$dir/stdout" '"twenty" also stands inside lines'
has "$dir/stderr" 'no line is "twenty" alone'
end text_holds_out_whole_documents

# 1 + 3k bytes: a cut at 90% falls inside a character of three bytes and has to move before it
for k in 3 4 5; do
    { printf x; for i in $(seq $k); do printf '\343\201\202'; done; } > "$dir/utf8.txt"
    check utf8 "$prepare" text "$dir/utf8.txt" --out "$dir/utf8" --overwrite
    n=$(tokens "$dir/utf8/text_train_000000.bin" | wc -l)
    same "characters before the cut, $k" "$(((n - 1) % 3))" 0
    cut=$(((3 * k + 1) * 9 / 10))
    same "the cut of $k is near" "$((n <= cut && n > cut - 3))" 1
done
end text_cuts_between_characters

# ---- JSON lines ----

{ printf '{"text": "one\\n\\u00e9", "id": 1}\n\n{"text":""}\n'
  printf '{"score": [0.5], "text":"two \\ud83d\\ude00"}\r\n{"text":"three"}'; } > "$dir/docs.jsonl"
cat "$dir/docs.jsonl" | check "a pipe" "$prepare" jsonl - --out "$dir/jsonl" --val-fraction 0.4
end='<|endoftext|>'
same train "$(text_of "$dir/jsonl/jsonl_train_000000.bin")" \
    "$(printf 'one\n\303\251%stwo \360\237\230\200%s' "$end" "$end")"
same val "$(text_of "$dir/jsonl/jsonl_val_000000.bin")" "three$end"
same header "$(ints "$dir/jsonl/jsonl_train_000000.bin" 5)" "20240520 1 16 257 256"
grep -q "jsonl written in .* documents: 3$" "$dir/stdout" || note "$(cat "$dir/stdout")"
sed '$ s/..$//' "$dir/docs.jsonl" > "$dir/torn.jsonl"
refused "torn.jsonl: line 5: byte " jsonl "$dir/torn.jsonl" --out "$dir/no"
check "without the torn line" "$prepare" jsonl "$dir/torn.jsonl" --skip-bad --key text \
    --val-fraction 0.5 --out "$dir/jsonl" --overwrite
grep -q "^prepare: 1 lines were left out; the first: .*torn.jsonl: line 5: [^;]*$" "$dir/stderr" ||
    note "$(cat "$dir/stderr")"
refused "3 documents are too few" jsonl "$dir/docs.jsonl" --out "$dir/no"
refused "bpe:N needs a text to train on" jsonl - --out "$dir/no" --tokenizer bpe:300
end jsonl_reads_documents

# ---- text, byte pairs ----

for i in 1 2 3 4 5 6 7 8 9; do
    printf 'the cat and the hat, the bat and the rat. caf\303\251 %d\n' $i
done > "$dir/words.txt"
check learn "$prepare" text "$dir/words.txt" --out "$dir/bpe" --tokenizer bpe:270 --val-fraction 0
has "$dir/stdout" "270 tokens trained"
same header "$(ints "$dir/bpe/text_train_000000.bin" 5 | cut -d' ' -f4-)" "270 269"
text_of "$dir/bpe/text_train_000000.bin" "$dir/bpe/tokenizer.json" > "$dir/back"
{ cat "$dir/words.txt"; printf '<|endoftext|>'; } > "$dir/want"
check "the text comes back" cmp "$dir/want" "$dir/back"
tokens "$dir/bpe/text_train_000000.bin" | grep -vx 269 | tr '\n' ' ' | sed 's/ $//' > "$dir/want"
"$prepare" encode --tokenizer "$dir/bpe" < "$dir/words.txt" | tr -d '\n' > "$dir/ids"
check "encode gives the same ids" cmp "$dir/want" "$dir/ids"
check "its file" "$prepare" text "$dir/words.txt" --out "$dir/bpe2" --val-fraction 0 \
    --tokenizer "$dir/bpe/tokenizer.json"
check "with its file, the same shard" cmp "$dir/bpe/text_train_000000.bin" \
    "$dir/bpe2/text_train_000000.bin"
check "with its file, the same file" cmp "$dir/bpe/tokenizer.json" "$dir/bpe2/tokenizer.json"
check "too little text" "$prepare" text "$dir/1.txt" --out "$dir/bpe2" --tokenizer bpe:5000 \
    --overwrite
has "$dir/stdout" "no other pair occurs twice"
refused "got 'bpe:256', expected bpe:N" text "$dir/1.txt" --out "$dir/no" --tokenizer bpe:256
seq -f '{"id": %.0f, "content": "pad"},' 270 65536 |
    sed '/added_tokens/r /dev/stdin' "$dir/bpe/tokenizer.json" > "$dir/large.json"
refused "65537 tokens, more than the 65536" text "$dir/1.txt" --out "$dir/no" \
    --tokenizer "$dir/large.json"
sed 's/<|endoftext|>/<\/s>/g' "$dir/bpe/tokenizer.json" > "$dir/slash.json"
refused "no <|endoftext|> among the tokens; prepare's --eos NAME takes another: </s>" \
    text "$dir/words.txt" --out "$dir/no" --tokenizer "$dir/slash.json"
check "another end of text" "$prepare" text "$dir/words.txt" --out "$dir/slash" --val-fraction 0 \
    --tokenizer "$dir/slash.json" --eos '</s>'
check "by its own name in our files" diff -r "$dir/bpe" "$dir/slash"
end byte_pairs

# ---- encode and decode ----

tail -c +100 "$prepare" | head -c 100000 > "$dir/any"
"$prepare" encode < "$dir/any" | "$prepare" decode > "$dir/back"
check "any bytes" cmp "$dir/any" "$dir/back"
same ids "$(printf 'Hi!' | "$prepare" encode)" "72 105 33"
same nothing "$(printf '' | "$prepare" encode)" ""
printf '1 257' > "$dir/ids"
input=$dir/ids refused "is not a token id; expected whole numbers from 0 to 256" decode
end encode_decode

# ---- an output directory that is not empty ----

cp -R "$dir/two" "$dir/replaced"
touch "$dir/replaced/text_train_000001.bin" "$dir/replaced/text_train_000007.bin.prepare-tmp"
refused "--overwrite replaces them" text "$dir/1.txt" --out "$dir/replaced"
check "refused, the shards are left" cmp "$dir/two/text_train_000000.bin" \
    "$dir/replaced/text_train_000000.bin"
check replace "$prepare" text "$dir/1.txt" --out "$dir/replaced" --overwrite
same "shards of the same name are replaced" "$(ls "$dir/replaced" | tr '\n' ' ')" \
    "text_train_000000.bin text_val_000000.bin tokenizer.json "
refused "holds text_" tales --out "$dir/two" --overwrite
mkdir "$dir/foreign"
touch "$dir/foreign/fineweb_train_000001.bin"
refused "fineweb_train_000001.bin, which is not a shard" text "$dir/1.txt" --out "$dir/foreign"
same "the foreign file alone" "$(ls "$dir/foreign")" fineweb_train_000001.bin
cp "$dir/two/text_train_000000.bin" "$dir/before"
refused "cannot open it" text "$dir/1.txt" "$dir/missing.txt" --out "$dir/two" --overwrite
check "shards survive a mistake" cmp "$dir/before" "$dir/two/text_train_000000.bin"
end output_that_is_not_empty

# ---- mistakes ----

mkdir "$dir/folder"
: > "$dir/empty"
printf x > "$dir/short"
refused "is a directory" text "$dir/folder" --out "$dir/no"
refused "is empty" text "$dir/1.txt" "$dir/empty" --out "$dir/no"
refused "standard input: is empty" text - --out "$dir/no"
{ printf %%PDF-1.7; cat "$dir/1.txt"; } > "$dir/it is"
refused "it is: not a text but a PDF; pdftotext" text "$dir/1.txt" "$dir/it is" --out "$dir/no"
refused "not a text but a shard of tokens; train_gpt2 --train FILE --val FILE reads it" \
    text "$val" --out "$dir/no"
ln -s "$dir/nowhere" "$dir/dangling"
refused "dangling: a symbolic link whose target does not exist" tales --out "$dir/dangling/below"
refused "1 bytes are too few" text "$dir/short" --out "$dir/no"
refused "no file" text --out "$dir/no"
refused "--out: missing" tales
refused "a file with this name exists" tales --out "$dir/1.txt/no"
refused "--tokens: got '0', expected a whole" tales --out "$dir/no" --tokens 0
refused "--tokenizer: " text "$dir/1.txt" --out "$dir/no" --tokenizer "$dir/nothing.json"
refused "tale: unknown command; expected tales, names" tale
refused "no command"
for command in "" tales names text jsonl encode decode; do
    check "help of $command" "$prepare" $command --help
    grep -q "^usage: prepare" "$dir/stdout" || note "no help for '$command'"
done
end mistakes

# ---- disasters ----

( ulimit -f 50; "$prepare" text "$dir/any" --out "$dir/two" --overwrite > /dev/null \
    2> "$dir/stderr" )
same "status of a text out of file size" $? 1
has "$dir/stderr" "writing to "
check "the old shards are left" cmp "$dir/before" "$dir/two/text_train_000000.bin"
same "temporary files" "$(leftovers "$dir/two")" 0
end a_file_too_large

"$prepare" tales --out "$dir/killed" --tokens 1e9 > /dev/null 2>&1 &
pid=$!
wait_for test -s "$dir/killed/tales_train_000000.bin.prepare-tmp"
kill -9 $pid
wait $pid 2> /dev/null
same "shards after kill -9" "$(find "$dir/killed" -name '*.bin' | wc -l | tr -d ' ')" 0
same "it was killed while writing" "$(($(leftovers "$dir/killed") > 0))" 1
check "the next run" "$prepare" tales --out "$dir/killed" --tokens 1000
same "temporary files" "$(leftovers "$dir/killed")" 0
end kill_9

for before in nothing again; do             # in a new folder, and in one that holds a corpus
    [ ! -e "$dir/$before" ] || cp -R "$dir/$before" "$dir/cut"
    "$prepare" tales --tokens 1e9 --out "$dir/cut" --overwrite > /dev/null 2>&1 &
    wait_for test -s "$dir/cut/tales_train_000000.bin.prepare-tmp"
    kill -TERM $!
    wait $! 2> /dev/null
    same "status after SIGTERM" $? 143
    if [ $before = nothing ]; then [ ! -e "$dir/cut" ] || note "SIGTERM left $(ls "$dir/cut")"
    else check "after SIGTERM" diff -r "$dir/$before" "$dir/cut"
    fi
done
end interrupted_runs_leave_nothing

# ---- many texts, pipes, and other encodings ----

mkdir "$dir/many"
for i in $(seq 300); do echo "text number $i" > "$dir/many/$i.txt"; done
( ulimit -n 64; exec "$prepare" text "$dir"/many/*.txt --out "$dir/many.d" > "$dir/stdout" )
same "ends of text" "$(eots "$dir/many.d/text_train_000000.bin" 256)" 270
end more_texts_than_open_files

mkfifo "$dir/pipe"
check file "$prepare" text "$dir/words.txt" --out "$dir/from_file" --tokenizer bpe:270
cat "$dir/words.txt" > "$dir/pipe" &
check "a named pipe" "$prepare" text "$dir/pipe" --out "$dir/from_pipe" --tokenizer bpe:270
wait
check "from a pipe" diff -r "$dir/from_file" "$dir/from_pipe"
end text_from_pipes

{ cat "$dir/words.txt"; printf '\337 sch\366n'; } > "$dir/odd"        # test_texts has NULs, too
check "a text in Latin-1" "$prepare" text "$dir/odd" "$dir/words.txt" --out "$dir/odd.d"
same "lines about it" "$(lines "$dir/stderr")" 1
grep -q "odd: byte $(wc -c < "$dir/words.txt") is not UTF-8, and 2 in all are; .* LATIN1" \
    "$dir/stderr" || note "$(cat "$dir/stderr")"
check "UTF-8 needs no warning" "$prepare" text "$dir/words.txt" --out "$dir/odd.d" --overwrite
same warning "$(cat "$dir/stderr")" ""
sed "s/$/$(printf '\r')/" "$dir/words.txt" > "$dir/windows.txt"
check "a text of Windows" "$prepare" text "$dir/windows.txt" --out "$dir/odd.d" --overwrite
grep -q "windows.txt: lines end in CR LF.*(in all $(lines "$dir/words.txt"));" "$dir/stderr" ||
    note "$(cat "$dir/stderr")"
check "a file twice" "$prepare" text "$dir/words.txt" "$dir/./words.txt" --out "$dir/odd.d" --overwrite
same warning "$(grep -c 'words.txt: is given twice' "$dir/stderr")" 1
end text_with_odd_bytes_gets_a_warning

# small: shards of 5000 tokens. blocks: texts are read 64 bytes at a time, and progress shows at once.
library "$dir/library.a" $cc -O0 -std=gnu11 -w -DPROGRESS_AFTER=0.0
build() {
    $cc -O0 -std=gnu11 -w "${@:2}" -o "$dir/$1" dev/prepare.c dev/data/shards.c "$dir/library.a" -lm
}
if build small -DSHARD_TOKENS=5000 2> /dev/null &&
        build blocks -DTEXT_BLOCK=64; then
    prepare=$dir/small
    check "many shards" "$dir/small" tales --out "$dir/shards" --tokens 30000 --seed 7
    for shard in "$dir"/shards/*_00000[01].bin; do
        same "the end of $shard" "$(tokens "$shard" | tail -n 1)" 256
        n=$(ints "$shard" 3 | cut -d' ' -f3)
        [ "$n" -le 5000 ] && [ "$n" -gt 3976 ] || note "$shard has $n tokens"
    done
    for shard in "$dir"/shards/tales_train_*.bin; do tokens "$shard"; done > "$dir/a"
    tokens "$train" > "$dir/b"
    check "shards in a row are the one shard" cmp "$dir/a" "$dir/b"
    shard=$dir/shards/tales_val_000001.bin
    same "floors of $shard" "$(($(wc -l < "${shard%.bin}.floor") - 1))" "$(eots "$shard" 256)"
    # blocks of 64 bytes are cut everywhere, and the long word makes them grow
    { head -c 30000 "$dir/any"; cat "$dir/words.txt"; printf '%05000d' 0; } > "$dir/mixed"
    for tokenizer in "$dir/bpe" byte bpe:400; do
        for kind in blocks small; do
            check "$kind" "$dir/$kind" text "$dir/mixed" --out "$dir/$kind.d" --overwrite \
                --tokenizer $tokenizer
            for s in "$dir/$kind.d/"*.bin; do tokens "$s"; done > "$dir/$kind.ids"
        done
        check "blocks change nothing" cmp "$dir/blocks.ids" "$dir/small.ids"
    done
    for kind in blocks small; do            # documents that no block holds, and many that one holds
        check "documents" "$dir/$kind" jsonl - --out "$dir/docs.d" --overwrite --val-fraction 0 \
            --tokenizer "$dir/bpe" < <(for i in $(seq 300); do
                printf '{"text": "%0*d %d"}\n' $((i * i % 331)) 7 $i; done)
        for s in "$dir/docs.d/"*.bin; do tokens "$s"; done > "$dir/$kind.ids"
    done
    check "blocks change no document" cmp "$dir/blocks.ids" "$dir/small.ids"
    check "fewer shards" "$dir/small" tales --out "$dir/shards" --tokens 6000 --seed 7 --overwrite
    same "stale shards are gone" "$(ls "$dir/shards" | grep -c train)" 2
    end many_shards_and_blocks

    shows="$dir/blocks text $dir/mixed --out $dir/progress --overwrite --tokenizer bpe:300"
    if TERM=xterm script -qec "$shows" /dev/null > "$dir/tty" 2> /dev/null < /dev/null; then
        tr '\r' '\n' < "$dir/tty" | grep -q "^encoding  [0-9]*%  [0-9:]* left" ||
            note "no line of 'encoding': $(head -c 300 "$dir/tty")"
        $shows > "$dir/stdout" 2> "$dir/stderr"
        same "lines in a file" "$(grep -c left "$dir/stdout")" 0
        end progress_on_a_terminal
    else
        skip progress_on_a_terminal "needs script, of util-linux"
    fi
else
    for name in many_shards_and_blocks progress_on_a_terminal; do
        skip "$name" "needs a C compiler"
    done
fi
exit $failed
