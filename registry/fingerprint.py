"""One short word for what components are: equal in two processes exactly if both run the same code under the same names."""

import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from .component import Component

DIGEST = "__lossary_digest__"
"""Where a recipe's plugin file keeps the digest of what was read."""


def fingerprint(components: Iterable[Component]) -> str:
    """Return 16 hex digits over the names, the distributions and the files of components, in any order."""
    files: dict[str, str] = {}
    lines = sorted(
        f"{c.kind.name} {c.name} {c.aliases} {c.distribution} {c.columns} {sorted(c.params.model_fields)} {_file(c, files)}"
        for c in components
    )
    return blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def _file(component: Component, known: dict[str, str]) -> str:
    """Return the digest of the file that a function stands in: what it calls stands mostly there too."""
    module = str(getattr(component.function, "__module__", ""))
    if module not in known:
        try:
            known[module] = (
                getattr(sys.modules.get(module), DIGEST, "")
                or blake2b(Path(str(sys.modules[module].__file__)).read_bytes(), digest_size=8).hexdigest()
            )
        except (KeyError, AttributeError, OSError):  # a notebook's function, or one whose file is gone
            known[module] = component.place
    return known[module]
