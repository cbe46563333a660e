"""The fields of a JSON text as dotted names: `links[].state`, as they are frozen for those who read them."""

# Mappings whose names come from the data.
FREE = {"weights", "validation.numbers", "ledgers.weights"}


def fields(value, prefix=""):
    """Yield the name of every leaf once it has one; the entries of a list count as one."""
    found = dict.fromkeys(_walk(value, prefix))
    # A list that is empty here may have fields elsewhere, and so may what is null here.
    return [name for name in found if not any(other.startswith((f"{name}.", f"{name}[]")) for other in found)]


def _walk(value, prefix):
    if isinstance(value, dict) and value and prefix not in FREE:
        for name, each in value.items():
            yield from _walk(each, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and value:
        for each in value:
            yield from _walk(each, f"{prefix}[]")
    else:
        yield prefix
