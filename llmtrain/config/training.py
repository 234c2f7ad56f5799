"""Section `training`: steps, batches, optimizer, schedule, saving, logging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import field_validator, model_validator

from llmtrain.config.section import Rule, Section, setting

_PROFILE = "profiling is not available in this version"
_PROFILE_ONLY = "it is read with training.profile only"


class TrainingConfig(Section):
    """Steps, batches, optimizer, schedule, saving, logging."""

    output_dir: str = setting(
        None,
        "folder for checkpoints, metrics and the exported model",
        required="give a folder for what the run leaves",
    )
    run_name: str | None = setting(None, "name of the run; null: that of the output folder")
    stage: Literal["pt", "sft"] = setting("sft", "pt: texts; sft: conversations")
    seed: int = setting(42, "seed of weights, data order and dropout", ge=0)
    deterministic: bool = setting(True, "use deterministic kernels")

    per_device_train_batch_size: int = setting(8, "samples per rank and forward pass", ge=1)
    per_device_eval_batch_size: int | None = setting(None, "the same for held-out data; null: as for training", ge=1)
    gradient_accumulation_steps: int | None = setting(
        None,
        "forward passes per update; null: 1, or as many as `global_batch_size` asks for",
        ge=1,
        differs="1; null lets `global_batch_size` decide",
    )
    global_batch_size: int | None = setting(None, "samples per update over all ranks", ge=1)
    num_train_epochs: float = setting(3.0, "passes over the data; fractions count", gt=0)
    max_steps: int = setting(-1, "updates to run, whatever num_train_epochs says; -1: by epochs", ge=-1)
    disable_shuffling: bool = setting(False, "keep the order of the files")

    optimizer: Literal["adamw", "fused_adamw", "sgd", "muon"] = setting("adamw", "rule of the update")
    lr: float = setting(1e-5, "peak learning rate", ge=0)
    weight_decay: float = setting(0.01, "decoupled weight decay of matrices; norms and biases have none", ge=0)
    adam_beta1: float = setting(0.9, "AdamW's decay rate of the mean", ge=0, lt=1)
    adam_beta2: float = setting(0.95, "AdamW's decay rate of the squares", ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon", ge=0)
    momentum: float = setting(0.0, "SGD's momentum", ge=0, lt=1)
    muon_momentum: float = setting(0.95, "Muon's momentum", ge=0, lt=1)
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0: no clipping", ge=0)
    max_skipped_steps: int = setting(10, "stop after so many steps in a row with non-finite gradients", ge=1)
    master_dtype: Literal["fp32", "bf16"] = setting("fp32", "dtype of the weights that the optimizer updates")

    lr_scheduler_type: Literal["cosine", "linear", "constant", "wsd"] = setting("cosine", "schedule after the warm-up")
    warmup_ratio: float = setting(
        0.03, "share of the updates that warm up; 0 where `warmup_steps` is given", ge=0, le=1
    )
    warmup_steps: int | None = setting(None, "updates that warm up, in place of `warmup_ratio`", ge=0)
    min_lr: float = setting(1e-6, "learning rate of the last update (cosine, linear, wsd)", ge=0)
    decay_ratio: float = setting(0.1, "share of the updates that decay at the end (wsd)", gt=0, le=1)

    save_steps: int = setting(500, "updates between checkpoints; 0: none by updates", ge=0)
    save_epochs: int = setting(1, "epochs between checkpoints; 0: none by epochs", ge=0)
    save_total_limit: int = setting(3, "checkpoints to keep; 0: all", ge=0)
    save_only_model: bool = setting(False, "checkpoints without optimizer state; they cannot be resumed")
    save_hf_weights: bool = setting(True, "export a Hugging Face folder at the end")
    hf_weights_dtype: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "dtype of the export; null: as the weights came, else parallel.param_dtype"
    )
    resume_from_checkpoint: str | None = setting(
        None, "a checkpoint, a run's folder, or `latest`: the newest of output_dir, or a new run where there is none"
    )

    logging_steps: int = setting(1, "updates between log lines", ge=1)
    log_cpu_memory: bool = setting(False, "log the host memory of the processes")
    report_to: list[str] = setting([], "trackers, such as tensorboard or wandb; metrics.jsonl is always written")
    eval_steps: int = setting(0, "updates between evaluations; 0: at the end only", ge=0)

    dataloader_num_workers: int = setting(0, "processes that read ahead", ge=0)
    dataloader_prefetch_factor: int | None = setting(None, "batches that each of them reads ahead", ge=1)
    dataloader_pin_memory: bool = setting(True, "batches in page-locked memory")
    dataloader_persistent_workers: bool = setting(False, "keep the processes from epoch to epoch")
    dataloader_drop_last: bool = setting(False, "leave out the last, smaller global batch of an epoch")

    log_throughput: bool = setting(False, "log tokens/s and MFU", moot="they are always logged")
    calculate_per_token_loss: bool = setting(
        True,
        "loss is the mean over the tokens of the global batch",
        later="a mean of means depends on how the batch is split over ranks",
        differs="false; only the mean over all tokens is the same for every layout",
    )
    save_async: bool = setting(
        False, "save in the background", later="saving in the background is not available in this version"
    )
    indexer_loss_coeff: float = setting(
        1.0,
        "weight of the indexer's loss",
        later="the loss of sparse attention's indexer is not available in this version",
    )
    router_aux_loss_coef: float = setting(
        0.0, "weight of the router's balance loss", later="router losses are not available in this version", ge=0
    )
    mtp_loss_scaling_factor: float = setting(
        0.3, "weight of multi-token prediction", later="multi-token prediction is not available in this version"
    )
    profile: bool = setting(False, "record a profile", later=_PROFILE)
    profile_step_start: int = setting(0, "first profiled step", moot=_PROFILE_ONLY)
    profile_step_end: int = setting(-1, "end of the profiled steps", moot=_PROFILE_ONLY)
    profile_ranks: list[int] = setting([-1], "profiled ranks", moot=_PROFILE_ONLY)
    profile_level: Literal["level_none", "level0", "level1", "level2"] = setting(
        "level0", "level of detail", moot=_PROFILE_ONLY
    )
    profile_export_type: Literal["text", "db"] = setting("text", "form of the profile", moot=_PROFILE_ONLY)
    profile_data_simplification: bool = setting(False, "drop raw data", moot=_PROFILE_ONLY)
    profile_with_cpu: bool = setting(False, "host activity", moot=_PROFILE_ONLY)
    profile_with_stack: bool = setting(False, "call stacks", moot=_PROFILE_ONLY)
    profile_with_memory: bool = setting(False, "memory", moot=_PROFILE_ONLY)
    profile_record_shapes: bool = setting(False, "shapes of operands", moot=_PROFILE_ONLY)
    profile_save_path: str = setting("./profile", "folder of profiles", moot=_PROFILE_ONLY)

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_the_default_ratio(cls, values: Any) -> Any:
        """So that a resolved config says what holds, and reads back as it is."""
        if isinstance(values, dict) and values.get("warmup_steps") not in (None, "None"):
            return {"warmup_ratio": 0.0, **values}
        return values

    @field_validator("max_steps")
    @classmethod
    def _some_steps(cls, value: int) -> int:
        if value == 0:
            raise ValueError("at least 1, or -1 to go by epochs")
        return value

    def rules(self) -> Iterator[Rule]:
        if self.warmup_steps is not None and self.warmup_ratio != 0:
            yield Rule(("warmup_steps", "warmup_ratio"), "and training.warmup_ratio exclude each other; give one")
        if self.min_lr > self.lr and self.lr_scheduler_type != "constant":
            yield Rule(("min_lr", "lr"), f"is {self.min_lr!r}; it must be at most training.lr, which is {self.lr!r}")
        if self.save_only_model and self.resume_from_checkpoint is not None:
            yield Rule(
                ("save_only_model", "resume_from_checkpoint"),
                "and training.resume_from_checkpoint exclude each other; without optimizer state nothing is resumed",
            )
        for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
            if self.dataloader_num_workers == 0 and getattr(self, name):
                yield Rule((name, "dataloader_num_workers"), "needs training.dataloader_num_workers of at least 1")
        yield from self._batch_rules()

    def _batch_rules(self) -> Iterator[Rule]:
        """What can be said without the number of ranks."""
        accumulation = self.gradient_accumulation_steps or 1
        samples = self.per_device_train_batch_size * accumulation
        if self.global_batch_size is not None and self.global_batch_size % samples:
            factors = "training.per_device_train_batch_size"
            if accumulation > 1:
                factors += " * training.gradient_accumulation_steps"
            yield Rule(
                ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"),
                f"is {self.global_batch_size}; it must be a multiple of {factors}, which is {samples}",
            )
