"""Helpers of the tests of decorators: what is refused, and where it says so."""

from pathlib import Path

import pytest

from lossary.registry import (
    SignatureError,
)


def refused(decorator, function, *, error=SignatureError, **traits):
    """Decorate, expect a refusal, and return its text, which always says where the function stands."""
    with pytest.raises(error) as caught:
        decorator(**traits)(function)
    text = str(caught.value)
    code = function.__code__
    assert text.startswith(f"{Path(code.co_filename).name}:{code.co_firstlineno}: "), text
    return text
