./train_gpt2 --layers 2 --heads 2 --channels 64 --tokens 6000000 --seq-len 256 --micro-batch 4 \
    --lr 3e-3 --lr-schedule wsd --warmup-tokens 20000 --beta2 0.99 --eval-every 0 --eval-tokens 256 \
    --save-every 0
