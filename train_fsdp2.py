"""Entry point under torchrun: `torchrun --nproc_per_node 2 train_fsdp2.py config.yaml --section.field value`."""

import sys

from llmtrain.cli import train_command

if __name__ == "__main__":
    sys.exit(train_command(sys.argv[1:]))
