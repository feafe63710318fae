"""A peer in a process and environment of its own. It reads requests as lines of JSON and answers each by one line.

``{"do": "load", "key", "case", "options", "inputs", "results"}`` builds a step from a file of inputs, runs it and writes what it
computed; ``{"do": "run", "key", "iterations"}`` answers the seconds of one call; ``{"do": "drop"}`` forgets all steps.
"""

import importlib
import json
import os
import sys
from typing import Any

import torch
from device import Device


def main(side: str, where: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    steps: dict[int, Any] = {}

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")

    try:
        device = Device(where)
        torch.set_num_threads(1)
        module = importlib.import_module(f"sides.{side}")
        answer(version=module.VERSION)
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        return
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "load":
                inputs = torch.load(asked["inputs"], map_location=device.torch)
                steps[asked["key"]], told = getattr(module, asked["case"])(inputs, **asked["options"])
                torch.save({name: x.detach().cpu() for name, x in told().items()}, asked["results"])
                answer(loaded=True)
            elif asked["do"] == "run":
                answer(seconds=device.seconds(steps[asked["key"]], asked["iterations"]))
            else:
                steps.clear()
                told = inputs = None
                if device.name == "cuda":
                    torch.cuda.empty_cache()
                answer(dropped=True)
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
