#!/bin/sh
# GPT-2's vocabulary: 50,256 lines of base64 and rank, 835,554 bytes; end of text is token 50256.
#
#     dev/data/fetch_gpt2_vocab.sh           writes data/gpt2.tiktoken
#     ./prepare text FILE --out DIR --tokenizer data/gpt2.tiktoken
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh
fetch https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken \
      306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930 \
      data/gpt2.tiktoken
