"""Whether a finished text matches its whole constraint, also what of it could not be held while it was generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, _WrappedReferencingError
from jsonschema.validators import extend
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from referencing import Registry

if TYPE_CHECKING:
    from lmtool.types import Constraint
