"""Checkpoints that are whole or absent: written aside by ``torch.distributed.checkpoint``, flushed to disk, then renamed.

Tensors lie in DCP's own files, cut by whatever ranks wrote them; what they are called and where they lie stands in one JSON file beside
the plain values, in the place of DCP's pickle. Any number of ranks can read what any other wrote.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException  # noqa: TID251
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo  # noqa: TID251
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata  # noqa: TID251
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load  # noqa: TID251
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save  # noqa: TID251

from ..registry import LossaryError
from .ranks import Group

INDEX = "checkpoint.json"
FAILURES = (OSError, RuntimeError, CheckpointException)  # torch reports a full disk as any of them


def newest(folder: Path) -> Path | None:
    """Return the checkpoint that was finished last; ``*.partial`` never was."""
    found = [p for p in folder.glob("checkpoint-*") if p.name[11:].isdigit() and (p / INDEX).is_file()]
    return max(found, key=lambda p: int(p.name[11:]), default=None)


def save(folder: Path, tensors: Mapping[str, Tensor], plain: Any, group: Group) -> None:
    """Write a checkpoint and drop the one before it; a kill at any moment leaves the old one or the new one.

    ``tensors`` are whole on every rank, or parts of one ``DTensor``; ``plain`` is JSON with further tensors in it. All ranks call it
    together, and all raise ``LossaryError`` if one of them could not write.
    """
    before = newest(folder)
    path = folder / f"checkpoint-{int(before.name[11:]) + 1 if before else 1}"
    aside, tensors = path.with_suffix(".partial"), dict(tensors)
    plain = _taken_out(plain, "plain", tensors)
    failed: BaseException | None = None
    try:
        if group.first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
        group.meet()
        with _alone():
            dcp_save(tensors, storage_writer=_Writer(aside, plain), no_dist=group.size == 1)
        if group.first:
            _flushed(aside)
            aside.rename(path)
            _flushed(folder)
    except FAILURES as error:
        failed = error
    if group.any(failed is not None):
        if group.first:
            shutil.rmtree(aside, ignore_errors=True)
        why = " ".join(str(failed or "another rank could not write its part").split())
        raise LossaryError(f"the checkpoint {path} cannot be written, the one before it is kept: {why}") from failed
    if group.first:
        for old in folder.glob("checkpoint-*"):
            if old != path and old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
    group.meet()


class Saved:
    """A checkpoint that can be read: names and plain values at once, tensors when asked for. No code in it is ever run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            index = json.loads((path / INDEX).read_text("utf-8"))
            self._reader = _Reader(path, _metadata(index["tensors"]))
            self.plain = self._put_back(index["plain"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._no_checkpoint(error) from error

    @property
    def names(self) -> set[str]:
        """The tensors that it holds."""
        return set(self._reader.index.state_dict_metadata)

    def under(self, prefix: str) -> set[str]:
        """Return the rest of the names that begin with ``prefix``."""
        return {n.removeprefix(prefix) for n in self.names if n.startswith(prefix)}

    def into(self, tensors: Mapping[str, Tensor], group: Group) -> None:
        """Fill tensors, or this rank's parts of them, by their names; one that is missing or of another shape raises ``LossaryError``."""
        for name, x in tensors.items():
            size = getattr(self._reader.index.state_dict_metadata.get(name), "size", None)
            if size != x.shape:
                what = "does not hold it" if size is None else f"has {list(size)} there"
                say = f"{name} is {list(x.shape)}, the checkpoint {what}"
                raise LossaryError(f"{self.path} does not fit this recipe and its overrides: {say}.")
        self._read(dict(tensors), no_dist=group.size == 1)

    def _read(self, tensors: dict[str, Tensor], *, no_dist: bool) -> None:
        if not tensors:
            return
        try:
            with _alone():
                dcp_load(tensors, storage_reader=self._reader, no_dist=no_dist)
        except (Exception, CheckpointException) as error:  # torch raises many kinds for files that are none
            raise self._no_checkpoint(error) from error

    def _put_back(self, x: Any) -> Any:
        """Turn names of tensors in plain values into those tensors again; every rank reads all of them."""
        if isinstance(x, dict) and set(x) == {"tensor"}:
            known = self._reader.index.state_dict_metadata[x["tensor"]]
            out = torch.empty(known.size, dtype=known.properties.dtype)  # type: ignore[union-attr]
            self._read({x["tensor"]: out}, no_dist=True)
            return out
        if isinstance(x, dict):
            return {k: self._put_back(v) for k, v in x.items()}
        return [self._put_back(v) for v in x] if isinstance(x, list) else x

    def _no_checkpoint(self, error: BaseException) -> LossaryError:
        why = " ".join(str(error).partition("\n")[0].split())
        return LossaryError(f"{self.path} is no checkpoint: {type(error).__name__}{': ' if why else ''}{why}")


def _taken_out(x: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Put the tensors of nested plain values under names of their own."""
    if isinstance(x, Tensor):
        tensors[name] = x.detach()
        return {"tensor": name}
    if isinstance(x, Mapping):
        return {k: _taken_out(v, f"{name}.{k}", tensors) for k, v in x.items()}
    return [_taken_out(v, f"{name}.{i}", tensors) for i, v in enumerate(x)] if isinstance(x, list | tuple) else x


@contextmanager
def _alone() -> Iterator[None]:
    """A single process is what was meant: torch need not say that it takes it for that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")
        yield


def _flushed(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Writer(FileSystemWriter):
    """DCP's writer, with an index that is read without running anything."""

    def __init__(self, path: Path, plain: Any) -> None:
        super().__init__(path, sync_files=True)
        self._plain = plain

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Write the index."""
        places = {wr.index: wr.storage_data for of_rank in results for wr in of_rank}
        tensors = {}
        for name, of in metadata.state_dict_metadata.items():
            assert isinstance(of, TensorStorageMetadata)
            chunks = [(c, places[MetadataIndex(name, c.offsets)]) for c in of.chunks]
            rows = [[[*c.offsets], [*c.sizes], s.relative_path, s.offset, s.length] for c, s in chunks]
            tensors[name] = {"dtype": str(of.properties.dtype).removeprefix("torch."), "size": [*of.size], "chunks": rows}
        with (Path(self.path) / INDEX).open("w", encoding="utf-8") as file:
            json.dump({"plain": self._plain, "tensors": tensors}, file)
            file.flush()
            os.fsync(file.fileno())


class _Reader(FileSystemReader):
    def __init__(self, path: Path, index: Metadata) -> None:
        super().__init__(path)
        self.index = index

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what the index said."""
        return self.index


def _metadata(tensors: Mapping[str, Any]) -> Metadata:
    known: dict[str, Any] = {}
    places = {}
    for name, of in tensors.items():
        chunks = []
        for offsets, sizes, file, offset, length in of["chunks"]:
            if Path(file).name != file:
                raise ValueError(f"{file!r} lies outside of it")
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            places[MetadataIndex(name, torch.Size(offsets))] = _StorageInfo(file, offset, length)
        known[name] = TensorStorageMetadata(TensorProperties(dtype=getattr(torch, of["dtype"])), torch.Size(of["size"]), chunks)
    return Metadata(known, storage_data=places)
