"""How a key of the configuration is declared, and what all sections share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

Scope = Literal["data", "train", "site"]


def key(default: Any, meaning: str, scope: Scope = "site", *, later: bool = False, **bounds: Any) -> Any:
    """Declare a configuration key.

    ``scope`` says what a change of the key changes: the shards (data), the checkpoints (train), or neither
    (site). Keys of scope data and train make up the fingerprint. ``later``: an option that campaigns from
    before it do not know; it is in the fingerprint, or the key of results, only where it is not the default.
    """
    extra: dict[str, Any] = {"scope": scope} | ({"later": True} if later else {})
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


def frozen(value: Any, scope: Scope) -> Any:
    """Declare what was a key once: its value is in the fingerprint, and nobody can set it."""
    return Field(value, json_schema_extra={"scope": scope}, exclude=True)


def _refuse(_: Any) -> Any:
    raise PydanticCustomError("extra_forbidden", "unknown key")


FROZEN: Any = (BeforeValidator(_refuse), SkipJsonSchema())  # type: ignore[type-arg]


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys; an infinite option of a plug-in stays one in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, tree: Any) -> Any:
        """Read a section whose keys are all commented out (null in YAML) as an empty one."""
        if not isinstance(tree, dict):
            return tree
        return {
            name: {} if value is None and name in _sections(cls) else value for name, value in tree.items()
        }


def _sections(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(
        name for name, info in model.model_fields.items() if isinstance(info.default, BaseModel | dict)
    )
