"""Section `training`: steps, batches, optimizer, schedule, saving, logging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from llmtrain.config.section import Rule, Section, setting

_PROFILE = "profiling is not available in this version"
_AUX = "router losses are not available in this version"


class TrainingConfig(Section):
    """Steps, batches, optimizer, schedule, saving, logging."""

    output_dir: str | None = setting(None, "folder for checkpoints, metrics and the exported model")
    stage: Literal["pt", "sft"] = setting("sft", "pt: text; sft: conversations")
    seed: int = setting(42, "seed of weights, data order and dropout", ge=0)
    deterministic: bool = setting(True, "deterministic kernels")
    disable_shuffling: bool = setting(False, "read in file order")

    per_device_train_batch_size: int = setting(8, "samples per rank and forward pass", ge=1)
    per_device_eval_batch_size: int | None = setting(None, "the same for held-out data; null: as for training", ge=1)
    gradient_accumulation_steps: int | None = setting(
        None,
        "forward passes per update; null: 1, or what `global_batch_size` asks for",
        ge=1,
        differs="1 there; null lets global_batch_size decide",
    )
    global_batch_size: int | None = setting(None, "samples per update over all ranks; accumulation is derived", ge=1)
    num_train_epochs: float = setting(3.0, "passes over the data; fractions count", gt=0)
    max_steps: int = setting(-1, "updates; -1: by epochs. Set, it decides alone", ge=-1)

    optimizer: Literal["adamw", "fused_adamw", "sgd", "muon"] = setting(
        "adamw", "update rule; adamw is fused where the device can"
    )
    lr: float = setting(1e-5, "peak learning rate", ge=0)
    weight_decay: float = setting(0.01, "decoupled decay of matrices; norms and biases are not decayed", ge=0)
    adam_beta1: float = setting(0.9, "AdamW's first decay rate", ge=0, lt=1)
    adam_beta2: float = setting(0.95, "AdamW's second decay rate", ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon", ge=0)
    momentum: float = setting(0.0, "SGD's momentum", ge=0, lt=1)
    muon_momentum: float = setting(0.95, "Muon's momentum", ge=0, lt=1)
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0: no clipping", ge=0)
    max_skipped_steps: int = setting(10, "so many steps in a row with non-finite gradients stop the run", ge=1)
    master_dtype: Literal["fp32", "bf16"] = setting("fp32", "dtype of the weights that the optimizer updates")

    lr_scheduler_type: Literal["cosine", "linear", "constant", "wsd"] = setting("cosine", "schedule after the warm-up")
    warmup_ratio: float = setting(0.03, "share of the updates that warm up", ge=0, le=1)
    warmup_steps: int | None = setting(None, "updates that warm up, in place of `warmup_ratio`", ge=0)
    min_lr: float = setting(1e-6, "learning rate of the last update (cosine, linear, wsd)", ge=0)
    decay_ratio: float = setting(0.1, "share of the updates that decay at the end (wsd)", gt=0, le=1)

    save_steps: int = setting(500, "checkpoint every so many updates; 0: off", ge=0)
    save_epochs: int = setting(1, "checkpoint at the end of every so many epochs; 0: off", ge=0)
    save_total_limit: int = setting(3, "checkpoints to keep; 0: all", ge=0)
    save_only_model: bool = setting(False, "save weights without optimizer state; cannot be resumed")
    save_hf_weights: bool = setting(True, "export a Hugging Face folder at the end")
    hf_weights_dtype: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "dtype of the export; null: as the source, else as computed"
    )
    resume_from_checkpoint: str | None = setting(
        None, "`latest`, a checkpoint or a run's folder; `latest` starts anew where there is none"
    )

    logging_steps: int = setting(1, "updates between log lines", ge=1)
    log_cpu_memory: bool = setting(False, "log the processes' host memory")
    log_throughput: bool = setting(False, "log tokens/s and MFU", moot="they are always logged")
    report_to: list[str] = setting([], "trackers: tensorboard, wandb, ... ; metrics.jsonl is always written")
    run_name: str | None = setting(None, "name of the run; null: the output folder's")
    eval_steps: int = setting(0, "evaluate every so many updates and before the first; 0: at the end only", ge=0)

    dataloader_num_workers: int = setting(0, "processes that read ahead", ge=0)
    dataloader_prefetch_factor: int | None = setting(None, "batches each of them reads ahead", ge=1)
    dataloader_pin_memory: bool = setting(True, "page-locked batches")
    dataloader_persistent_workers: bool = setting(False, "keep them between epochs")
    dataloader_drop_last: bool = setting(False, "leave out the last, smaller global batch of an epoch")

    calculate_per_token_loss: bool = setting(
        True,
        "mean over the tokens of the global batch",
        later="a mean of means would depend on how the batch is split over ranks",
        differs="off there; only the token mean is the same for every layout",
    )
    save_async: bool = setting(
        False, "save in the background", later="saving in the background is not available in this version"
    )
    indexer_loss_coeff: float = setting(
        1.0, "weight of the indexer loss", later="sparse attention's indexer loss is not available in this version"
    )
    router_aux_loss_coef: float = setting(0.0, "weight of the router's balance loss", later=_AUX, ge=0)
    mtp_loss_scaling_factor: float = setting(
        0.3, "weight of multi-token prediction", later="multi-token prediction is not available in this version"
    )
    profile: bool = setting(False, "record a profile", later=_PROFILE)
    profile_step_start: int = setting(0, "first profiled step", moot=_PROFILE)
    profile_step_end: int = setting(-1, "end of the profiled steps", moot=_PROFILE)
    profile_ranks: list[int] = setting([-1], "profiled ranks", moot=_PROFILE)
    profile_level: Literal["level_none", "level0", "level1", "level2"] = setting("level0", "detail", moot=_PROFILE)
    profile_export_type: Literal["text", "db"] = setting("text", "form", moot=_PROFILE)
    profile_data_simplification: bool = setting(False, "drop redundant data", moot=_PROFILE)
    profile_with_cpu: bool = setting(False, "host activity", moot=_PROFILE)
    profile_with_stack: bool = setting(False, "call stacks", moot=_PROFILE)
    profile_with_memory: bool = setting(False, "memory", moot=_PROFILE)
    profile_record_shapes: bool = setting(False, "shapes", moot=_PROFILE)
    profile_save_path: str = setting("./profile", "folder of profiles", moot=_PROFILE)

    @field_validator("max_steps")
    @classmethod
    def _some_steps(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must be -1 (by epochs) or at least 1")
        return value

    def rules(self) -> Iterator[Rule]:
        if self.output_dir is None:
            yield Rule(("output_dir",), "is missing: give a folder for the run's outputs")
        if self.warmup_steps is not None and "warmup_ratio" in self.model_fields_set:
            yield Rule(("warmup_steps", "warmup_ratio"), "give warmup_steps or warmup_ratio, not both")
        if self.min_lr > self.lr and self.lr_scheduler_type != "constant" and "min_lr" in self.model_fields_set:
            yield Rule(("min_lr",), f"is {self.min_lr:g}, above lr ({self.lr:g})")
        if self.dataloader_num_workers == 0:
            for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
                if getattr(self, name):
                    yield Rule((name,), "needs dataloader_num_workers of at least 1")
        if self.global_batch_size is not None and self.global_batch_size % self.per_device_train_batch_size:
            yield Rule(
                ("global_batch_size",),
                f"is {self.global_batch_size}, no multiple of per_device_train_batch_size ({self.per_device_train_batch_size})",
            )
