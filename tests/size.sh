#!/usr/bin/env bash
# How large this project is: lines and bytes of its text files, by room. Not counted: pages (*.md),
# kept results, the fixtures in tests/fixtures, and the ten files of dev/build_up, which repeat each
# other by design.
#
#     tests/size.sh             the table
#     tests/size.sh --check     and status 1 if something is above its cap
#
# A cap falls in the commit that made its subject smaller. It rises only in a commit of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

# What may be at most: source is everything that is counted, tests included.
caps="source lines 64180
source bytes 2980750
tests lines 19900
files in_git 420"

counted() {
    git ls-files | grep -vE '\.md$|^(scripts/lab|dev)/results/|^tests/fixtures/' |
        grep -vE '^dev/build_up/[01][0-9]_' | while read -r file; do
        if [ -f "$file" ] && grep -Iq . "$file"; then echo "$file"; fi
    done
}

counted | tr '\n' '\0' | xargs -0 wc -lc | awk -v caps="$caps" -v files="$(git ls-files | wc -l)" \
    -v check="${1:-}" '
    $3 == "total" { next }
    {
        n = split($3, part, "/")
        room = n == 1 ? "top level" : part[1] == "tests" ? "tests" : n == 2 ? part[1] : part[1] "/" part[2]
        lines[room] += $1; bytes[room] += $2; count[room]++
        if ($1 > most[room]) { most[room] = $1; longest[room] = part[n] }
        is["source lines"] += $1; is["source bytes"] += $2
    }
    END {
        is["tests lines"] = lines["tests"]; is["files in_git"] = files
        printf "%-18s %7s %9s %6s  %s\n", "room", "lines", "bytes", "files", "longest file"
        for (room in lines)
            printf "%-18s %7d %9d %6d  %s, %d\n", room, lines[room], bytes[room], count[room],
                   longest[room], most[room] | "sort -k1"
        close("sort -k1")
        for (i = split(caps, cap, "\n"); i > 0; i--) {
            split(cap[i], word, " ")
            what = word[1] " " word[2]
            above = is[what] > word[3]
            printf "%-18s %7d, at most %d%s\n", what, is[what], word[3], above ? ": TOO LARGE" : ""
            failed += above
        }
        exit check == "--check" && failed
    }'
