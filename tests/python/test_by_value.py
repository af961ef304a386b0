"""Which globals travel with a function."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hmc._by_value import named_globals


def in_main(source: str, **values: Any) -> Any:
    namespace = {"__name__": "__main__", **values}
    exec(source, namespace)  # a function of __main__
    return namespace["function"]


def test_those_of_functions_inside_it() -> None:
    assert named_globals(in_main("def function():\n    return lambda: used", used=1, other=2)) == {"used": 1}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_those_that_type_parameters_name() -> None:
    source = "def function():\n    class Inside:\n        def method[T: bound](self): ...\n    return Inside"
    found = named_globals(in_main(source, bound=int, other=2))
    assert found["bound"] is int
    assert "other" not in found
