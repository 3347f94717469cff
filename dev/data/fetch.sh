# Downloads one file with a known checksum. The scripts of this folder source it:
#
#     . "$(dirname "$0")/fetch.sh"
#     fetch URL SHA256 DEST || exit 1
#     fetch_pointer URL                    prints the checksum in a Git LFS pointer, or nothing
#
# - DEST is either absent or complete: the download goes to DEST.part, which is renamed after its
#   checksum has been verified.
# - If DEST has the right checksum, the network is not used. Other contents are an error.
# - If SHA256 is the word shard, no checksum is known: a shard's header, its count of tokens and its
#   size are verified instead.
# - An interrupted download in DEST.part is continued if possible, else started again.
# - A failure prints one line on stderr, with the URL for a manual download, and returns 1.
#
# Plain sh. Needs curl or wget, and sha256sum or shasum.

fetch() (      # a subshell: its variables do not leak
    url=$1 sha256=$2 dest=$3 part=$3.part right="checksum right"
    wrong="its checksum is not $sha256: the file has changed or was damaged"
    if [ "$sha256" = shard ]; then
        right="header and size right" wrong="it is not a shard as long as its header says"
    fi
    if [ -e "$dest" ]; then
        fetch_right "$dest" && echo "$dest: already here, $right" && exit 0
        echo "fetch: $dest: exists with other contents; move it away and run this again" >&2
        exit 1
    fi
    if ! { mkdir -p "$(dirname "$dest")" && true >>"$part"; } 2>/dev/null; then
        echo "fetch: $dest: cannot be written; check the directory and its permissions" >&2
        exit 1
    fi
    if [ -s "$part" ]; then
        fetch_right "$part" && fetch_keep
        echo "$dest: continuing after $(fetch_size "$part") bytes"
        fetch_rest && fetch_right "$part" && fetch_keep
        case "$status $reason" in
            "0 "* | "33 "* | "36 "* | *416*) true >"$part" ;;  # wrong bytes, or no resuming
            *) fetch_by_hand "download interrupted ($reason); run this again to continue it" ;;
        esac
    fi
    echo "$dest: fetching $url"
    if ! fetch_rest; then
        [ -s "$part" ] || rm -f "$part"
        fetch_by_hand "download failed ($reason)"
    fi
    fetch_right "$part" && fetch_keep
    reason=$wrong
    ! fetch_is_page || reason="the server sent a web page, perhaps a proxy's or a login page"
    rm -f "$part"
    fetch_by_hand "download rejected ($reason)"
)

fetch_pointer() {
    if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --location --retry 2 --connect-timeout 20 "$1" 2>/dev/null
    else
        wget --quiet --tries=2 --timeout=20 --output-document=- "$1" 2>/dev/null
    fi | head -c 1000 | sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p'
}

# The functions below are private to fetch and use its variables.

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

fetch_right() {
    if [ "$sha256" = shard ]; then
        # shellcheck disable=SC2046                        # words on purpose
        set -- "$1" $(head -c 12 "$1" | od -An -t d4)      # magic, version, number of tokens
        [ "${2:-}:${3:-}" = 20240520:1 ] && [ "${4:-0}" -gt 0 ] &&
            [ "$(fetch_size "$1")" = $((1024 + 2 * $4)) ]
        return
    fi
    if command -v sha256sum >/dev/null 2>&1; then
        found=$(sha256sum <"$1")
    else
        found=$(shasum -a 256 <"$1")
    fi
    [ "${found%% *}" = "$sha256" ]
}

# Success: renames $part and exits.
fetch_keep() {
    mv -f "$part" "$dest" || exit 1
    echo "$dest: $(fetch_size "$dest") bytes, $right"
    exit 0
}

fetch_size() { wc -c <"$1" | tr -d ' '; }

fetch_is_page() { head -c 1024 "$part" | grep -qi '<!doctype html\|<html'; }

# Failure: $1 says what went wrong.
fetch_by_hand() {
    echo "fetch: $dest: $1; by hand: get $url and put it at $dest" >&2
    exit 1
}
