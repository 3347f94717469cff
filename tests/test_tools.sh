#!/usr/bin/env bash
# tests/tools.sh, on which every other shell test relies: a check takes what is right and notes what
# is wrong, and a test that has noted something fails.
. "$(dirname "$0")/tools.sh"

notes() {                                   # notes CHECK ARGS...: it must note something
    local before=$why
    why=
    "$@"
    [ -n "$why" ] && why=$before || why=${before:-"goes unnoticed: $*"}
}

same length 3 3
notes same length 3 4
notes same length "" 3
for pair in "-1 -1.0005" "1e-9 1.0005e-9" "0 0"; do near "$pair" ${pair% *} ${pair#* } 1e-3; done
for pair in "1 1.002" "-1 1" "0 1" "null 1" "1 null" "nan nan"; do
    notes near "$pair" ${pair% *} ${pair#* } 1e-3
done
notes near "nothing" "" "" 1e-3
within less 9.9e-07 1e-6
for apart in 1.1e-06 nothing nan ""; do notes within "$apart" "$apart" 1e-6; done
printf 'one [two]\n' > "$dir/said"
: > "$dir/empty"
has "$dir/said" "[two]"
notes has "$dir/said" "on."
notes has "$dir/empty" one
silent "$dir/empty"
notes silent "$dir/said"
notes silent "$dir/none"
end checks_note_what_is_wrong

says() { printf '%s' "$1" >&2; return "$2"; }      # says WORDS STATUS
works says "some words" 0
notes works says "" 1
good says "" 0
notes good says "" 2
notes good says "some words" 0
line=$'x: a file is missing\n'
one_line "file is" says "$line" 1
notes one_line "file was" says "$line" 1
notes one_line "fil. is" says "$line" 1
notes one_line "file is" says "$line" 0
notes one_line "file is" says "$line" 2
notes one_line "file is" says "$line$line" 1
notes one_line "" says "" 1
end runs_are_judged

mkdir "$dir/run"
printf '{"event":"step","step":%d,"loss":%s}\n' 1 5.5 2 null > "$dir/run/log.jsonl"
echo '{"event":"eval","loss":4}' >> "$dir/run/log.jsonl"
same "a folder's values" "$(values step loss "$dir/run" | xargs)" "5.5 null"
same "a log's values" "$(values eval loss "$dir/run/log.jsonl")" 4
end values_and_paths

cat > "$dir/script" << 'END'
. tests/tools.sh
echo "$dir"
note "first '$1'"; note second; end wrong
skip lacking "a thing"
note third; skip noted "a thing"
end right
exit $failed
END
bash "$dir/script" x > "$dir/said"
same "its status" $? 1
same "its lines" "$(tail -n +2 "$dir/said")" "FAIL wrong: first 'x'
skip lacking: a thing
FAIL noted: third
ok right"
[ ! -e "$(head -n 1 "$dir/said")" ] || note "its folder stays"
echo '. tests/tools.sh; tests="a b"; skip_all "all things"' > "$dir/script"
same "all skipped" "$(bash "$dir/script"; echo $?)" "skip a: all things
skip b: all things
0"
end a_noted_fault_fails
exit $failed
