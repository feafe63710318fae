"""Where runs run: jobs of a cluster, through submitit (``pip install 'lossary[slurm]'``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..registry import LossaryError
from .launching import THREADS, Ended


class Slurm:
    """A job for each run. Jobs outlive this process: begun again, it finds those that still wait or run, by the file with their number."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any], cluster: str = "slurm") -> None:
        """Open a cluster; ``parameters`` are submitit's, as ``{"slurm_partition": "gpu", "timeout_min": 60}``."""
        try:
            import submitit  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise LossaryError("--launcher slurm needs submitit: pip install 'lossary[slurm]'.") from error
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self.executor.update_parameters(cpus_per_task=1, **parameters)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise LossaryError(f"submitit: {' '.join(str(error).split())}") from error
        self.command = submitit.helpers.CommandFunction
        self.found = self.executor._executor.job_class

    def start(self, name: str, words: list[str]) -> "Job":
        """Submit, or attach to the job that was submitted under this name and has not ended."""
        note = self.folder / f"{name}.job"
        if note.exists():
            job = self.found(folder=self.folder, job_id=note.read_text("utf-8").strip())
            if not job.done():
                return Job(job, note)
        job = self.executor.submit(self.command(["env", *(f"{t}=1" for t in THREADS), *words], verbose=False))
        note.write_text(job.job_id, "utf-8")
        return Job(job, note)


class Job:
    """One job."""

    def __init__(self, job: Any, note: Path) -> None:
        self.job, self.note = job, note

    def ended(self) -> Ended | None:
        """Return None while it waits or runs."""
        if not self.job.done():
            return None
        self.note.unlink(missing_ok=True)
        try:
            return True, str(self.job.result())
        except Exception as error:  # submitit raises its own for a failed command, others for a lost job
            return False, str(error)

    def stop(self) -> None:
        """Leave it: a job goes on without us, and is found again."""
