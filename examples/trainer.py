"""Pre-train an ELECTRA with transformers' Trainer: TOKENIZER (a folder) TEXT (a file) OUT STEPS."""

import sys

from datasets import load_dataset
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from electra.trainer import (
    DataCollatorForReplacedTokenDetection,
    ElectraForReplacedTokenDetection,
    paper_optimizers,
)

tokenizer_folder, text, out, steps = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
data = load_dataset("text", data_files=text, split="train").filter(lambda row: row["text"].strip())
data = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=128))
model = ElectraForReplacedTokenDetection.from_recipe("toy", tokenizer)


class PrintMetrics(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        metrics = model.metrics()
        print(
            f"step {state.global_step}: recall {metrics['recall']:.3f}, loss {metrics['loss']:.2f}"
        )


trainer = Trainer(
    model,
    TrainingArguments(out, max_steps=int(steps), per_device_train_batch_size=16, logging_steps=10),
    data_collator=DataCollatorForReplacedTokenDetection(tokenizer),
    train_dataset=data,
    optimizers=paper_optimizers(model, int(steps)),
    callbacks=[PrintMetrics()],
)
trainer.train()
model.save_pretrained(out)  # out/discriminator and out/generator, for transformers
