"""Run EuroEval with another learning rate and patience: LR PATIENCE, then EuroEval's own options.

EuroEval trains every encoder at 2e-5 and stops when the validation loss has not improved twice;
neither is an option of its command. Scores made with this script are not those of its leaderboard.
"""

import sys

from euroeval import cli, finetuning
from transformers import EarlyStoppingCallback

lr, patience = float(sys.argv[1]), int(sys.argv[2])
get_training_args = finetuning.get_training_args


def get_changed_args(**given):
    args = get_training_args(**given)
    args.learning_rate = lr
    return args


def stop_early(early_stopping_patience):
    return EarlyStoppingCallback(early_stopping_patience=patience)


finetuning.get_training_args = get_changed_args
finetuning.EarlyStoppingCallback = stop_early
cli.benchmark(sys.argv[3:])
