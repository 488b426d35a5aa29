"""What the reader of large bodies takes for granted of their models."""

from joex.http.models import JobBody

_SCALARS = {"string", "integer", "number", "boolean", "null"}


def test_of_the_fields_of_a_job_only_its_arguments_may_be_a_list_or_an_object():
    """`joex.http.bodies` drops all other lists and objects of a large body, as the model refuses them in any case."""
    fields = JobBody.model_json_schema()["properties"]
    kinds = {name: {one.get("type") for one in field.get("anyOf", [field])} for name, field in fields.items()}
    assert [name for name, kind in kinds.items() if not kind <= _SCALARS] == ["args"]
