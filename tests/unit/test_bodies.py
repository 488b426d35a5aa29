"""What the reader of large bodies takes for granted of their models, and what these leave alone."""

from joex.http.models import JobBody
from joex.http.worker_models import UpdateBody

NAME = "019f0000-0000-7000-8000-000000000000"
_SCALARS = {"string", "integer", "number", "boolean", "null"}


def test_of_the_fields_of_a_job_only_its_arguments_may_be_a_list_or_an_object():
    """`joex.http.bodies` drops all other lists and objects of a large body, as the model refuses them in any case."""
    fields = JobBody.model_json_schema()["properties"]
    kinds = {name: {one.get("type") for one in field.get("anyOf", [field])} for name, field in fields.items()}
    assert [name for name, kind in kinds.items() if not kind <= _SCALARS] == ["args"]


def test_objects_of_any_values_are_neither_checked_nor_copied_part_by_part() -> None:
    """For 9 MB of fields that took the event loop .3 s."""
    data, free = {"a": 1}, {"b": [2], "c": None}
    opts = UpdateBody.model_validate({"job": NAME, "lock_id": NAME, "opts": {"data": data, **free}}).opts
    assert opts.given() == {"data": data, **free}
    assert opts.given()["data"] is data
    assert not opts.model_extra
    assert JobBody(task="t", args=data).args is data
