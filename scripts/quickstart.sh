#!/usr/bin/env bash
# Sets up, pretrains a small model on a real text, fine-tunes it on questions and answers, and lets it speak.
# Nothing else is needed than Python 3.11 with pip. Outputs go to output/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( $(nproc) > 2 ? $(nproc) / 2 : 1 ))}"
for name in pretrain sft; do
  if [ -e "output/quickstart-$name" ]; then
    echo "output/quickstart-$name is there from an earlier run: remove it to start again, as in: rm -r output/quickstart-*" >&2
    exit 1
  fi
done
"$python" -m torch.distributed.run --standalone --nproc_per_node 2 train_fsdp2.py configs/quickstart/pretrain.yaml
"$python" -m torch.distributed.run --standalone --nproc_per_node 2 train_fsdp2.py configs/quickstart/sft.yaml
"$python" scripts/sample.py output/quickstart-sft/hf --chat \
  'What does the noun "river" mean?' 'Define "king".' 'What kind of thing is "apple"?' 'What is the opposite of "cold"?'
"$python" scripts/sample.py output/quickstart-pretrain/hf 'And the LORD said unto Moses,' 'In the beginning'
echo
echo "loss plots   output/quickstart-pretrain/loss.png  output/quickstart-sft/loss.png"
echo "metrics      output/quickstart-pretrain/metrics.jsonl  output/quickstart-sft/metrics.jsonl"
echo "models       output/quickstart-pretrain/hf  output/quickstart-sft/hf  (transformers loads them as they are)"
