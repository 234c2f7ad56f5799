"""A Hugging Face folder that transformers loads with nothing else, written one tensor at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion

from llmtrain.checkpoint.files import publish, write_synced
from llmtrain.errors import UserError
from llmtrain.runtime.world import World

MAX_FILE_BYTES = 5 * 10**9
_FORMAT_NAMES = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def export_hf(
    folder: Path,
    model: PreTrainedModel,
    template: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    generation: GenerationConfig,
    dtype: torch.dtype,
    world: World,
) -> None:
    """Writes `folder` from the sharded `model`; all ranks call it, rank 0 writes.

    No rank holds more than one whole tensor beyond its shards (a group of them where the official layout joins
    several). Written aside and renamed, like a checkpoint. `template` is an unsharded skeleton on meta.

    Raises:
        UserError: on every rank, when the folder cannot be written.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    writer = _Writer(partial, dtype) if world.is_main else None
    error: OSError | None = None
    if writer is not None:
        try:
            writer.open(_plan(template, dtype))
        except OSError as caught:
            error = caught
    for piece in _pieces(model, template, dtype):
        # Ranks gather in lockstep; once writing has failed rank 0 only takes part, and the error is told at the end.
        if writer is not None and error is None:
            try:
                writer.write(piece)
            except OSError as caught:
                error = caught
        del piece  # before the next one is gathered
    if writer is not None and error is None:
        try:
            writer.close()
            tokenizer.save_pretrained(partial)
            generation.save_pretrained(partial)
            _write_config(partial, template, dtype)
            publish(partial, folder)
        except OSError as caught:
            error = caught
    if error is not None:
        shutil.rmtree(partial, ignore_errors=True)
    world.agree(UserError(f"The export to {folder} could not be written: {error.strerror}.") if error else None)


def _stored_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters (tied ones once) and persistent buffers, by name."""
    kept = set(model.state_dict())
    buffers = {name: b for name, b in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}


def _groups(template: PreTrainedModel) -> list[list[str]]:
    """Names that must be converted together: single ones where the official layout splits or renames, else blocks."""
    tensors = {name: t.to("meta") for name, t in _stored_tensors(template).items()}
    whole = set(revert_weight_conversion(template, dict(tensors)))
    alone: set[str] = set()
    for name, tensor in tensors.items():
        alone |= set(revert_weight_conversion(template, {name: tensor}))
    return [[name] for name in tensors] if alone == whole else [list(tensors)]


def _pieces(model: PreTrainedModel, template: PreTrainedModel, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """Whole tensors under their official names, group by group, on the CPU."""
    tensors = _stored_tensors(model)
    for group in _groups(template):
        # Not kept in a variable: it would live on while the next group is gathered.
        yield revert_weight_conversion(
            model, {name: _gather(tensors[name], _kept_dtype(template, name, tensors[name], dtype)) for name in group}
        )


def _gather(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    tensor = tensor.detach().to(dtype)
    if isinstance(tensor, DTensor):
        moved = tensor.to(tensor.device_mesh.device_type)
        assert isinstance(moved, DTensor)
        tensor = moved.full_tensor()
    return tensor.cpu()


def _kept_dtype(template: PreTrainedModel, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Integers stay, and so does what the model class insists on having in float32."""
    strict = template._keep_in_fp32_modules_strict or ()
    if not tensor.is_floating_point():
        return tensor.dtype
    return torch.float32 if any(part in strict for part in name.split(".")) else dtype


def _plan(template: PreTrainedModel, dtype: torch.dtype) -> list[tuple[str, torch.Size, torch.dtype]]:
    """Official names, shapes and dtypes in the order in which `_pieces` yields them."""
    tensors = _stored_tensors(template)
    plan = []
    for group in _groups(template):
        metas = {n: tensors[n].to("meta", _kept_dtype(template, n, tensors[n], dtype)) for n in group}
        plan += [(name, t.shape, t.dtype) for name, t in revert_weight_conversion(template, metas).items()]
    return plan


class _Writer:
    """safetensors files, streamed: the format is a JSON table of offsets, then the tensors' bytes in that order."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder = folder
        self.dtype = dtype
        self._files: list[tuple[str, list[tuple[str, torch.Size, torch.dtype]]]] = []
        self._left: Iterator[tuple[str, torch.Size, torch.dtype]] = iter(())
        self._at = -1
        self._file: Any = None
        self._pending = 0

    def open(self, plan: list[tuple[str, torch.Size, torch.dtype]]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        parts: list[list[tuple[str, torch.Size, torch.dtype]]] = [[]]
        size = 0
        for entry in plan:
            if parts[-1] and size + _nbytes(entry) > MAX_FILE_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(entry)
            size += _nbytes(entry)
        one = len(parts) == 1
        self._files = [
            ("model.safetensors" if one else f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors", part)
            for i, part in enumerate(parts)
        ]
        if not one:
            index = {name: file for file, part in self._files for name, _, _ in part}
            total = sum(map(_nbytes, plan))
            text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
            write_synced(self.folder / "model.safetensors.index.json", text)

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if self._pending == 0:
                self._next_file()
            expected = next(self._left)
            if (name, tensor.shape, tensor.dtype) != expected:
                raise RuntimeError(
                    f"Export order broken: {name} {tuple(tensor.shape)} came where {expected} was planned."
                )
            self._file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
            self._pending -= 1

    def close(self) -> None:
        """Ends the last file; every planned tensor must have come."""
        if self._pending or self._at + 1 != len(self._files):
            raise RuntimeError("The export ended before every tensor was written.")
        self._end_file()

    def _next_file(self) -> None:
        self._end_file()
        self._at += 1
        name, entries = self._files[self._at]
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for key, shape, dtype in entries:
            end = offset + _nbytes((key, shape, dtype))
            table[key] = {"dtype": _FORMAT_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
            offset = end
        header = json.dumps(table, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self._file = (self.folder / name).open("wb")
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._left, self._pending = iter(entries), len(entries)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _nbytes(entry: tuple[str, torch.Size, torch.dtype]) -> int:
    return entry[1].numel() * entry[2].itemsize


def _write_config(folder: Path, template: PreTrainedModel, dtype: torch.dtype) -> None:
    """config.json with the dtype that the files hold, and rotary settings in both spellings.

    transformers 5 writes `rope_parameters` only; programs that read the older `rope_theta` and `rope_scaling` would
    fall back to a theta of 10,000 without a word.
    """
    config = template.config
    config.architectures = [type(template).__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    rope = written.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope and "rope_theta" not in written:
        written["rope_theta"] = rope["rope_theta"]
        scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
        written["rope_scaling"] = scaling if scaling.get("rope_type", "default") != "default" else None
        write_synced(path, json.dumps(written, indent=2, sort_keys=True) + "\n")
