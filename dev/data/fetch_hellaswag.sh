#!/bin/sh
# HellaSwag's validation split (Zellers et al. 2019): 10,042 contexts with four endings each, one
# JSON object a line, 12,246,618 bytes.
#
#     dev/data/fetch_hellaswag.sh            writes data/hellaswag_val.jsonl
#     ./train_gpt2 ... --hellaswag data/hellaswag_val.jsonl
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh
fetch https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl \
      0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588 \
      data/hellaswag_val.jsonl
