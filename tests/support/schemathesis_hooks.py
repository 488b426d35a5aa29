"""What schemathesis is told besides the description of the HTTP interface; it loads this in a process of its own."""

import re
from typing import Any

import schemathesis
from schemathesis.openapi.checks import RejectedPositiveData, UnsupportedMethodResponse

# Why a call that fits its schema may be refused all the same: JSON Schema has no words for these rules.
_NOT_IN_THE_SCHEMA = re.compile(
    r"at most \d+ bytes"  # it counts characters
    r"|must not contain a NUL"  # anywhere in the arguments
    r"|not_before: expected a time with a zone"  # or a delay
    r"|cursor: expected what the page before has given"
    r"|^(timer|time zone)\b"  # languages of their own
    r"|starting_deadline: expected"
)


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Let these failures count; the others are as they should be."""
    if isinstance(failure, RejectedPositiveData) and response.status_code == 400:
        return not _NOT_IN_THE_SCHEMA.search(response.json()["detail"])
    # The gate stands before all routes: without the token nobody learns which methods there are.
    return not (isinstance(failure, UnsupportedMethodResponse) and response.status_code == 401)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Where a call can wait, it does not: the configuration says so too, but not where limits are tried out."""
    is_right = case.meta is not None and case.meta.generation.mode.is_positive
    if is_right and isinstance(case.body, dict) and "wait" in case.body:
        case.body = {**case.body, "wait": 0}
