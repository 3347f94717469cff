#!/bin/sh
# GPT-2's published weights, as a checkpoint directory that --init reads: data/NAME.
#
#     dev/data/fetch_gpt2.sh [gpt2|gpt2-medium|gpt2-large|gpt2-xl]      0.5, 1.5, 3.2 or 6.4 GB
#     ./train_gpt2 --init data/gpt2 --generate "The batch size"
#
# An interrupted download is continued. Without a network: put config.json, tokenizer.json and
# model.safetensors into that directory; the script prints their URLs.
cd "$(dirname "$0")/../.." || exit 1
. dev/data/fetch.sh

name=${1:-gpt2}
case $name in      # a fixed revision of each, and SHA-256 of its model.safetensors and config.json
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
    *)
        echo "fetch_gpt2.sh: $name: expected gpt2, gpt2-medium, gpt2-large or gpt2-xl" >&2
        exit 1 ;;
esac
tokenizer=8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6    # of all four

from=https://huggingface.co/openai-community/$name/resolve/$revision
fetch "$from/config.json" $config "data/$name/config.json" &&
fetch "$from/tokenizer.json" $tokenizer "data/$name/tokenizer.json" &&
fetch "$from/model.safetensors" $weights "data/$name/model.safetensors"
