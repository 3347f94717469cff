#!/bin/sh
# Tiny Shakespeare: 1,115,394 bytes of plays, a common benchmark for character-level models.
#
#     dev/data/fetch_shakespeare.sh          writes data/tinyshakespeare.txt
#     ./prepare text data/tinyshakespeare.txt --out data/shakespeare
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh
fetch https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt \
      86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
      data/tinyshakespeare.txt
