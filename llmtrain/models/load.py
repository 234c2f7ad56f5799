"""Weights of a Hugging Face folder straight into shards, through transformers' own conversion and slicing."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from llmtrain.errors import UserError
from llmtrain.models.build import set_parameter


def load_pretrained(model: PreTrainedModel, folder: str | Path, device: torch.device) -> list[str]:
    """Loads `folder` (safetensors, one file or an index) into the sharded `model`; each rank reads what it keeps.

    Returns:
        Notices for the user: tensors of the folder that the model has no place for.

    Raises:
        UserError: no weights there, a damaged file, missing tensors or tensors of another shape, each named.
    """
    folder = Path(folder)
    expected = set(model.state_dict())
    with ExitStack() as stack:
        slices = _open_slices(stack, _weight_files(folder))
        report, _ = convert_and_load_state_dict_in_model(
            model,
            slices,
            LoadStateDictConfig(
                pretrained_model_name_or_path=str(folder),
                device_map={"": device},
                dtype=next(model.parameters()).dtype,
                weight_mapping=get_model_conversion_mapping(model),
            ),
        )
    model.mark_tied_weights_as_initialized(report)
    model.tie_weights(missing_keys=report.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(report)
    tied = set(model.all_tied_weights_keys)
    missing = sorted(key for key in report.missing_keys & expected if key not in tied)
    if missing:
        raise UserError(_listing(f"{folder} lacks {len(missing)} of the model's {len(expected)} tensors", missing))
    if report.mismatched_keys:
        lines = sorted(f"{k}: file {tuple(found)}, model {tuple(want)}" for k, found, want in report.mismatched_keys)
        raise UserError(_listing(f"{folder} holds {len(lines)} tensors of another shape than the model's", lines))
    if report.conversion_errors:
        raise UserError(_listing(f"{folder} could not be converted", sorted(report.conversion_errors)))
    _own_memory(model)
    if not report.unexpected_keys:
        return []
    return [
        _listing(
            f"{folder} holds {len(report.unexpected_keys)} tensors the model has no place for; they are "
            f"neither trained nor exported",
            sorted(report.unexpected_keys),
        )
    ]


def _own_memory(model: PreTrainedModel) -> None:
    """Copies each shard out of the mapped file: training writes in place, and a slice may be a view of the mapping."""
    for name, parameter in list(model.named_parameters()):
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if local.is_meta:
            raise UserError(f"No weights were found for {name}.")
        if local.untyped_storage().nbytes() != local.numel() * local.element_size():
            set_parameter(model, name, parameter.detach().clone())
    model.tie_weights()


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        absent = [n for n in names if not (folder / n).is_file()]
        if absent:
            raise UserError(_listing(f"{index} names {len(absent)} weight files that are not there", absent))
        return [folder / n for n in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise UserError(
        f"{folder} holds no model.safetensors and no model.safetensors.index.json. Older pickle weights (*.bin) are "
        f"not read; convert them with transformers' save_pretrained. To train from random weights set "
        f"model.train_from_scratch: true."
    )


def _open_slices(stack: ExitStack, files: list[Path]) -> dict[str, Any]:
    slices = {}
    for file in files:
        try:
            handle = stack.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{file} is damaged or no safetensors file ({error}); copy or download it again."
            ) from error
        for key in handle.keys():  # noqa: SIM118  a safetensors handle is no mapping
            slices[key] = handle.get_slice(key)
    return slices


def _listing(what: str, names: list[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{what}: {', '.join(names[:shown])}{more}."
