./train_gpt2 --layers 2 --heads 2 --channels 64 --tokens 4700000 --seq-len 256 --micro-batch 4 \
    --lr 4e-3 --lr-schedule linear --final-lr-frac 0 --warmup-tokens 20000 --beta2 0.99 \
    --eval-every 0 --eval-tokens 256 --save-every 0
