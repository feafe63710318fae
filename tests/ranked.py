"""Processes that are the ranks of one run, each with torch.distributed joined; a silence of all of them is taken for a hang."""

import faulthandler
import json
import multiprocessing
import queue
import time
import warnings

import torch
import torch.distributed as dist  # noqa: TID251

LIMIT = 300
"""Seconds in which some rank has something to tell, or they are taken for waiting for each other."""


def _life(rank, size, job, folder, told, args):
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    for found in job(rank, size, folder, *args):
        told.put((rank, json.dumps(found)))
    told.put((rank, None))
    told.close()
    told.join_thread()
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def on_ranks(size, job, folder, *args):
    """Run ``job(rank, size, folder, *args)``, a generator of JSON values, on so many ranks; returns for each what it yielded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lossary.trainer.loop", "torch._dynamo"])
    told, found, open_ = context.Queue(), [[] for _ in range(size)], set(range(size))
    processes = [context.Process(target=_life, args=(rank, size, job, folder, told, args)) for rank in range(size)]
    for p in processes:
        p.start()
    deadline = time.monotonic() + LIMIT
    try:
        while open_:
            assert time.monotonic() < deadline, f"ranks {sorted(open_)} hang after {[len(x) for x in found]} results"
            assert not any(p.exitcode for p in processes), [p.exitcode for p in processes]
            try:
                rank, said = told.get(timeout=1)
            except queue.Empty:
                continue
            deadline = time.monotonic() + LIMIT
            if said is None:
                open_.remove(rank)
            else:
                found[rank].append(json.loads(said))
        for p in processes:
            p.join(30)
    finally:
        for p in processes:
            p.kill() if p.is_alive() else None
    return found
