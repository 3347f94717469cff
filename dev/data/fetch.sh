# Fetches one file of known content. For the scripts of this folder to source:
#
#     . "$(dirname "$0")/fetch.sh"
#     fetch URL SHA256 DEST || exit 1
#
# - DEST is either absent or right: bytes arrive in DEST.part, renamed once its checksum is right.
# - A right DEST is left alone without touching the network; a DEST with other contents is an error.
# - What an interrupted run left in DEST.part is continued, or else fetched anew.
# - A failure is one message on stderr, which says how to get the file by hand, and status 1.
#
# Plain sh. Needs curl or wget, and sha256sum or shasum.

fetch() (      # a subshell: its variables do not leak
    url=$1 sha256=$2 dest=$3 part=$3.part
    if [ -e "$dest" ]; then
        fetch_right "$dest" && echo "$dest: already here, checksum right" && exit 0
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
            "0 "* | "33 "* | "36 "* | *416*) true >"$part" ;;  # foreign bytes, or no continuing
            *) fetch_by_hand "the download broke off ($reason); run this again to continue it" ;;
        esac
    fi
    echo "$dest: fetching $url"
    if ! fetch_rest; then
        [ -s "$part" ] || rm -f "$part"
        fetch_by_hand "could not be fetched ($reason)"
    fi
    fetch_right "$part" && fetch_keep
    reason="its checksum is not $sha256: the file has changed or was damaged"
    fetch_is_page && reason="a web page came in its place, perhaps from a proxy or a login page"
    rm -f "$part"
    fetch_by_hand "was not kept ($reason)"
)

# The functions below are called by fetch alone and use its variables.

# Appends to $part what it lacks of $url. Sets status (curl's, or wget's plus 100) and reason.
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
    if command -v sha256sum >/dev/null 2>&1; then
        found=$(sha256sum <"$1")
    else
        found=$(shasum -a 256 <"$1")
    fi
    [ "${found%% *}" = "$sha256" ]
}

# The end of fetch: renames $part.
fetch_keep() {
    mv -f "$part" "$dest" || exit 1
    echo "$dest: $(fetch_size "$dest") bytes, checksum right"
    exit 0
}

fetch_size() { wc -c <"$1" | tr -d ' '; }

fetch_is_page() { head -c 1024 "$part" | grep -qi '<!doctype html\|<html'; }

# The other end of fetch: $1 says what went wrong.
fetch_by_hand() {
    echo "fetch: $dest: $1; by hand: get $url and put it at $dest" >&2
    exit 1
}
