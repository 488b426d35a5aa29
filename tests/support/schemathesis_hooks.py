"""Hooks of schemathesis, in addition to the description of the HTTP interface; it loads them in its own process."""

import re
from typing import Any

import schemathesis
from schemathesis.openapi.checks import RejectedPositiveData, UnsupportedMethodResponse

# Reasons to refuse a call that fits its schema: JSON Schema can't express these rules.
_NOT_IN_THE_SCHEMA = re.compile(
    r"at most \d+ bytes"  # JSON Schema counts characters
    r"|must not contain a NUL"  # anywhere in the arguments
    r"|not_before: expected a time with a zone"  # or a delay
    r"|cursor: expected the cursor of a previous page"
    r"|^(timer|time zone)\b"  # have their own grammar
    r"|starting_deadline: expected"
    r"|Incomplete versionstamp"  # the one whose first 20 digits are all f
    r"|packed: not a part of a tuple"
)


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Report these failures; the others are expected."""
    if isinstance(failure, RejectedPositiveData) and response.status_code == 400:
        return not _NOT_IN_THE_SCHEMA.search(response.json()["detail"])
    # Authentication comes before all routes: a client without the token does not learn which methods exist.
    return not (isinstance(failure, UnsupportedMethodResponse) and response.status_code == 401)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Never let a call wait. The configuration says so too, but not in the phase that tests limits."""
    is_right = case.meta is not None and case.meta.generation.mode.is_positive
    if is_right and isinstance(case.body, dict) and "wait" in case.body:
        case.body = {**case.body, "wait": 0}
